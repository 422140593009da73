#include "orchestrator/plan/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "orchestrator/base/status.h"

namespace orrery::plan {
namespace {

constexpr int64_t kSpareBytes = int64_t{512} << 20;
// Code of kernels, ours and the libraries', as the driver loads it when it is first used.
constexpr int64_t kCodeBytes = int64_t{512} << 20;

std::string Size(int64_t bytes) {
  const auto x = static_cast<double>(bytes);
  if (bytes < 1000 * 1000 * 1000) return fmt::format("{:.1f} MB", x * 1e-6);
  return fmt::format("{:.2f} GB", x * 1e-9);
}

int64_t RoundUp(int64_t bytes, int64_t page) { return (bytes + page - 1) / page * page; }

int64_t KvBytes(const MemoryNeeds& needs, const MemoryLimits& limits, int64_t blocks) {
  const int64_t bytes = blocks * needs.kv.block_bytes;
  return limits.gpu_name.empty() ? bytes : RoundUp(bytes, limits.gpu_page_bytes);
}

int64_t SwapBytes(const MemoryNeeds& needs) { return needs.kv.swap * needs.kv.block_bytes; }

// Blocks of which the cache, in whole pages, takes at most `room` bytes.
int64_t BlocksWithin(const MemoryNeeds& needs, const MemoryLimits& limits, int64_t room) {
  if (needs.kv.block_bytes == 0) return needs.kv.wanted;
  const int64_t page = limits.gpu_name.empty() ? 1 : limits.gpu_page_bytes;
  return std::max<int64_t>(room, 0) / page * page / needs.kv.block_bytes;
}

// Room for the cache on the device that has it, lending or not.
int64_t KvRoom(const MemoryPlan& plan) {
  const MemoryNeeds& needs = plan.needs;
  if (!plan.on_gpu()) {
    return plan.limits.host_bytes - Sum(needs.host) - Sum(needs.samples) - Sum(needs.saving) -
           SwapBytes(needs);
  }
  const int64_t fixed = Sum(needs.gpu) + Sum(plan.offloaded ? needs.staging : needs.optimizer);
  const int64_t room = plan.limits.gpu_bytes - plan.limits.gpu_spare_bytes - fixed;
  return plan.kv_lends ? room : room - Sum(needs.training);
}

bool FitsWith(const MemoryPlan& plan, int64_t blocks) {
  const int64_t room = KvRoom(plan);
  if (KvBytes(plan.needs, plan.limits, blocks) > room) return false;
  return !plan.kv_lends || Sum(plan.needs.training) <= room;
}

// As many blocks as fit, where there are at least so many.
bool Shrink(int64_t least, MemoryPlan* plan) {
  least = std::min(least, plan->needs.kv.wanted);
  if (plan->needs.kv.fixed || !FitsWith(*plan, least)) return false;
  const int64_t fits = BlocksWithin(plan->needs, plan->limits, KvRoom(*plan));
  plan->kv_blocks = std::min(fits, plan->needs.kv.wanted);
  return true;
}

std::string Table(const std::string& title, const std::vector<Item>& items, int64_t total) {
  std::string text = title + "\n";
  for (const Item& item : items) {
    text += fmt::format("  {:<46} {:>12}\n", item.name, Size(item.bytes));
  }
  return text + fmt::format("  {:<46} {:>12}\n", "in all, at most", Size(total));
}

void Append(const std::vector<Item>& from, std::vector<Item>* to) {
  to->insert(to->end(), from.begin(), from.end());
}

Item KvItem(const MemoryPlan& plan) {
  return {fmt::format("keys and values of {} tokens", plan.kv_blocks * plan.needs.kv.block_tokens),
          plan.kv_bytes()};
}

std::vector<Item> GpuItems(const MemoryPlan& plan) {
  std::vector<Item> items = plan.needs.gpu;
  Append(plan.offloaded ? plan.needs.staging : plan.needs.optimizer, &items);
  Append(plan.needs.training, &items);
  items.push_back(KvItem(plan));
  return items;
}

std::vector<Item> HostItems(const MemoryPlan& plan) {
  std::vector<Item> items = plan.needs.host;
  Append(plan.needs.samples, &items);
  Append(plan.offloaded ? plan.needs.optimizer : plan.needs.saving, &items);
  if (!plan.on_gpu()) items.push_back(KvItem(plan));
  if (plan.needs.kv.swap > 0) {
    items.push_back({fmt::format("swapped keys and values of {} tokens{}",
                                 plan.needs.kv.swap * plan.needs.kv.block_tokens,
                                 plan.on_gpu() ? ", pinned" : ""),
                     SwapBytes(plan.needs)});
  }
  return items;
}

std::string Notes(const MemoryPlan& plan) {
  std::string text;
  if (plan.kv_lends) {
    text +=
        fmt::format("  keys and values and the {} of training share their memory, turn by turn\n",
                    Size(Sum(plan.needs.training)));
  } else if (plan.on_gpu() && !plan.needs.training.empty()) {
    text += fmt::format(
        "  the {} of training are for full micro-batches, and taken at the start: no step takes "
        "more\n",
        Size(Sum(plan.needs.training)));
  }
  if (plan.needs.refills) {
    text +=
        "  the samples are those of steps in which every refill of algorithm.max_refills happens "
        "and finds nothing before the last one\n";
  }
  if (plan.offloaded) {
    text += "  master weights and moments lie in pinned memory of the host\n";
  }
  if (!plan.needs.kv.fixed && plan.kv_blocks < plan.needs.kv.wanted) {
    text += fmt::format(
        "  keys and values: {} of the {} tokens with which no running sequence ever waits\n",
        plan.kv_blocks * plan.needs.kv.block_tokens,
        plan.needs.kv.wanted * plan.needs.kv.block_tokens);
  }
  return text;
}

std::string Fix(const MemoryPlan& plan) {
  const MemoryNeeds& needs = plan.needs;
  std::string fix;
  const auto add = [&](std::string_view text) {
    if (!fix.empty()) fix += ", ";
    fix += text;
  };
  if (!needs.training.empty()) {
    add("lower trainer.micro_batch_tokens");
    add("set trainer.recompute: block");
  }
  if (!plan.offloaded && !needs.optimizer.empty() && needs.offload == Offload::kNever) {
    add("set trainer.optimizer_offload: auto");
  }
  if (needs.kv.swap > 0 && !plan.fits_host()) add("lower rollout.swap_tokens");
  if (Sum(needs.samples) > plan.limits.host_bytes / 10 && !plan.fits_host()) {
    add(needs.refills ? "lower algorithm.max_refills" : "lower rollout.prompts_per_step");
    add("lower sampling.max_new_tokens");
  }
  if (needs.kv.fixed) add("lower rollout.kv_tokens");
  add("lower rollout.max_running or rollout.prefill_chunk_tokens");
  add("use a smaller model or model.dtype: bfloat16");
  return fix;
}

std::string Largest(std::vector<Item> items) {
  std::erase_if(items, [](const Item& item) { return item.bytes == 0; });
  std::stable_sort(items.begin(), items.end(),
                   [](const Item& a, const Item& b) { return a.bytes > b.bytes; });
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(items.size(), 5); ++i) {
    text += fmt::format("{}{} {}", i > 0 ? ", " : "", items[i].name, Size(items[i].bytes));
  }
  return text;
}

}  // namespace

int64_t Sum(const std::vector<Item>& items) {
  int64_t sum = 0;
  for (const Item& item : items) sum += item.bytes;
  return sum;
}

MemoryLimits LimitsOfGpu(int architecture, int64_t memory_bytes, int64_t page_bytes) {
  MemoryLimits limits;
  limits.gpu_name = fmt::format("compute capability {}.{}", architecture / 10, architecture % 10);
  limits.gpu_bytes = memory_bytes;
  limits.gpu_spare_bytes = kSpareBytes;
  limits.gpu_page_bytes = page_bytes;
  return limits;
}

std::vector<Item> TakenUnasked(int64_t taken_bytes) {
  return {{"taken before: driver, other programs", taken_bytes},
          {"code of kernels and libraries", kCodeBytes}};
}

int64_t MemoryPlan::kv_bytes() const { return KvBytes(needs, limits, kv_blocks); }

int64_t MemoryPlan::gpu_bytes() const {
  if (!on_gpu()) return 0;
  const int64_t fixed = Sum(needs.gpu) + Sum(offloaded ? needs.staging : needs.optimizer);
  const int64_t training = Sum(needs.training);
  return fixed + (kv_lends ? std::max(kv_bytes(), training) : kv_bytes() + training);
}

int64_t MemoryPlan::host_bytes() const {
  return Sum(needs.host) + Sum(needs.samples) + Sum(offloaded ? needs.optimizer : needs.saving) +
         (on_gpu() ? 0 : kv_bytes()) + SwapBytes(needs);
}

bool MemoryPlan::fits_gpu() const {
  return !on_gpu() || gpu_bytes() + limits.gpu_spare_bytes <= limits.gpu_bytes;
}

bool MemoryPlan::fits_host() const { return host_bytes() <= limits.host_bytes; }

MemoryPlan Decide(const MemoryNeeds& needs, const MemoryLimits& limits) {
  MemoryPlan plan;
  plan.needs = needs;
  plan.limits = limits;
  plan.kv_blocks = needs.kv.wanted;
  const bool can_offload = plan.on_gpu() && !needs.optimizer.empty();
  plan.offloaded = can_offload && needs.offload == Offload::kAlways;
  if (FitsWith(plan, needs.kv.wanted)) return plan;
  plan.kv_lends = plan.on_gpu() && Sum(needs.training) > 0;
  const int64_t quarter = std::max(needs.kv.least, needs.kv.wanted / 4);
  if (FitsWith(plan, needs.kv.wanted) || Shrink(quarter, &plan)) return plan;
  if (can_offload && needs.offload == Offload::kAuto) {
    plan.offloaded = true;
    // With the room that it makes nothing else may be needed.
    plan.kv_lends = false;
    if (FitsWith(plan, needs.kv.wanted)) return plan;
    plan.kv_lends = Sum(needs.training) > 0;
    if (FitsWith(plan, needs.kv.wanted)) return plan;
  }
  // Where this does not fit either the plan says so by its totals.
  if (!Shrink(needs.kv.least, &plan) && !needs.kv.fixed) {
    plan.kv_blocks = std::min(needs.kv.least, needs.kv.wanted);
  }
  return plan;
}

absl::Status CheckFits(const MemoryPlan& plan) { return CheckFits(plan, Fix(plan)); }

absl::Status CheckFits(const MemoryPlan& plan, std::string_view fix) {
  if (!plan.fits_gpu()) {
    return Exhausted("it takes {} of the GPU's memory, and {} are there ({}): {}; {}",
                     Size(plan.gpu_bytes()),
                     Size(plan.limits.gpu_bytes - plan.limits.gpu_spare_bytes),
                     plan.limits.gpu_name, Largest(GpuItems(plan)), fix);
  }
  if (!plan.fits_host()) {
    return Exhausted("it takes {} of the host's memory, and {} are there: {}; {}",
                     Size(plan.host_bytes()), Size(plan.limits.host_bytes),
                     Largest(HostItems(plan)), fix);
  }
  return absl::OkStatus();
}

std::string Summary(const MemoryPlan& plan) {
  std::string text;
  if (plan.on_gpu()) {
    text =
        fmt::format("{} of {} on the GPU, ", Size(plan.gpu_bytes()), Size(plan.limits.gpu_bytes));
  }
  text += fmt::format("{} on the host; keys and values of {} tokens", Size(plan.host_bytes()),
                      plan.kv_blocks * plan.needs.kv.block_tokens);
  if (plan.kv_lends) text += ", which lend their memory to the trainer";
  if (plan.offloaded) text += "; master weights and moments on the host";
  return text;
}

std::string PlanText(const MemoryPlan& plan) {
  std::string text;
  if (plan.on_gpu()) {
    text += Table(
        fmt::format("on the GPU ({}, {}):", plan.limits.gpu_name, Size(plan.limits.gpu_bytes)),
        GpuItems(plan), plan.gpu_bytes());
  }
  text += Table(fmt::format("on the host ({}):", Size(plan.limits.host_bytes)), HostItems(plan),
                plan.host_bytes());
  const std::string notes = Notes(plan);
  if (!notes.empty()) text += "how:\n" + notes;
  if (plan.fits_gpu() && plan.fits_host()) {
    return text + (plan.on_gpu() ? fmt::format("it fits, with {} of the GPU's memory to spare\n",
                                               Size(plan.limits.gpu_bytes - plan.gpu_bytes()))
                                 : "it fits\n");
  }
  return text;
}

}  // namespace orrery::plan
