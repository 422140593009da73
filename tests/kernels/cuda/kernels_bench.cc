// Times of the GPU kernels, each on its own, against what bounds them: bytes over the copy ceiling,
// or products over the matmul ceiling, both measured in the same run. Not a test:
//
//   kernels_bench [linear|attention|rows|experts|experts_grad|route|sampler ...]
//
// Launches follow one another as in a step (programmatic dependent launch), over enough copies of
// the operands that nothing is found in L2.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "kernels/attention/attention_cuda.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/fill.h"
#include "kernels/experts/norm_route_cuda.h"
#include "kernels/experts/routed_experts_cuda.h"
#include "kernels/experts/routed_experts_grad_cuda.h"
#include "kernels/linear/linear_cuda.h"
#include "kernels/rms_norm/rms_norm_cuda.h"
#include "kernels/rope/qk_norm_rope_cuda.h"
#include "kernels/sampler/sampler_cuda.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int64_t kL2Bytes = int64_t{160} << 20;  // more than any L2: this much between two uses
constexpr DType kType = DType::kBFloat16;

double g_copy_rate = 0, g_matmul_rate = 0;  // bytes and operations a second

// Microseconds a call, of 30 calls after 5; call(i) uses copy i of its operands.
double Time(const std::function<void(int)>& call) {
  cudaEvent_t start, stop;
  CUDA_CHECK(cudaEventCreate(&start));
  CUDA_CHECK(cudaEventCreate(&stop));
  for (int i = 0; i < 5; ++i) call(i);
  CUDA_CHECK(cudaEventRecord(start, nullptr));
  for (int i = 5; i < 35; ++i) call(i);
  CUDA_CHECK(cudaEventRecord(stop, nullptr));
  CUDA_CHECK(cudaEventSynchronize(stop));
  float ms = 0;
  CUDA_CHECK(cudaEventElapsedTime(&ms, start, stop));
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  return ms * 1e3 / 30;
}

// A matrix in so many copies; copy i of call i.
class Copies {
 public:
  Copies(int64_t rows, int64_t cols, DType dtype = kType)
      : rows_(rows),
        cols_(cols),
        dtype_(dtype),
        bytes_((rows * cols * SizeOf(dtype) + 255) & ~255) {
    num_ = std::clamp<int64_t>(kL2Bytes / std::max<int64_t>(bytes_, 1), 1, 64);
    buffer_ = DeviceBuffer(num_ * bytes_);
    FillUniform(buffer_.data(), dtype, num_ * bytes_ / SizeOf(dtype), -1, 1, 7, nullptr);
  }
  TensorView view(int i) const {
    return {buffer_.data() + i % num_ * bytes_, dtype_, rows_, cols_, cols_};
  }
  int64_t bytes() const { return rows_ * cols_ * SizeOf(dtype_); }

 private:
  int64_t rows_, cols_;
  DType dtype_;
  int64_t bytes_, num_ = 1;
  DeviceBuffer buffer_;
};

template <typename T>
DeviceBuffer Upload(const std::vector<T>& host) {
  DeviceBuffer buffer(static_cast<int64_t>(host.size() * sizeof(T)));
  CUDA_CHECK(
      cudaMemcpy(buffer.data(), host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  return buffer;
}

void Print(const std::string& what, double us, double bytes, double operations) {
  const double memory = bytes / g_copy_rate * 1e6, products = operations / g_matmul_rate * 1e6;
  const double roof = std::max(memory, products);
  fmt::print("{:<58} {:>9.2f} us {:>8.2f} TB/s {:>8.1f} TFLOP/s {:>6.1f} % of the {} roof\n", what,
             us, bytes / us * 1e-6, operations / us * 1e-6, 100 * roof / us,
             memory > products ? "copy" : "matmul");
}

void MeasureCeilings(LinearLibrary* library) {
  const int64_t bytes = int64_t{4} << 30;
  const DeviceBuffer from(bytes), to(bytes);
  g_copy_rate = 2.0 * static_cast<double>(bytes) / Time([&](int) {
                  CUDA_CHECK(cudaMemcpyAsync(to.data(), from.data(), static_cast<size_t>(bytes),
                                             cudaMemcpyDeviceToDevice, nullptr));
                }) *
                1e6;
  const Copies a(16384, 8192), b(8192, 8192), c(16384, 8192);
  const double us =
      Time([&](int i) { library->Run(a.view(i), b.view(i), {}, c.view(i), nullptr); });
  g_matmul_rate = 2.0 * 16384 * 8192 * 8192 / us * 1e6;
  fmt::print("copy ceiling {:.2f} TB/s, matmul ceiling {:.0f} TFLOP/s\n", g_copy_rate * 1e-12,
             g_matmul_rate * 1e-12);
}

struct LinearShape {
  const char* name;
  int64_t n, k;
  bool gated = false;
};
const LinearShape kLinearShapes[] = {
    {"smollm2 qkv", 960, 576},
    {"smollm2 o", 576, 576},
    {"smollm2 gate-up", 3072, 576, true},
    {"smollm2 down", 576, 1536},
    {"30b-a3b qkv", 5120, 2048},
    {"30b-a3b o", 2048, 4096},
    {"1.7b gate-up", 12288, 2048, true},
    {"8b qkv", 6144, 4096},
    {"8b gate-up", 24576, 4096, true},
    {"8b down", 4096, 12288},
};

// Exact products by both kernels, and cuBLASLt's.
void BenchLinear(const DeviceLimits& limits, LinearLibrary* library) {
  DeviceLimits streaming = limits;  // for which no tiled product is planned
  streaming.wgmma = false;
  for (const LinearShape& s : kLinearShapes) {
    for (const int64_t rows : {1, 8, 64, 256, 384, 512, 1024, 2048, 8192}) {
      const Copies x(rows, s.k), w(s.n, s.k), out(rows, s.n);
      const auto run = [&](const DeviceLimits& device, Numerics numerics) {
        return Time([&](int i) {
          if (s.gated) {
            TensorView half = out.view(i);
            half.cols = half.row_stride = s.n / 2;
            return LinearSwiGlu(x.view(i), w.view(i), device, half, nullptr, numerics);
          }
          Linear(x.view(i), w.view(i), {}, device, out.view(i), nullptr, numerics);
        });
      };
      const double bytes = static_cast<double>(x.bytes() + w.bytes() + out.bytes());
      const double operations = 2.0 * static_cast<double>(rows * s.n * s.k);
      const auto name = [&](const char* kernel) {
        return fmt::format("linear {} [{} x {} x {}] {}", s.name, rows, s.n, s.k, kernel);
      };
      Print(name("planned"), run(limits, Numerics::kExact), bytes, operations);
      if (rows >= 256) Print(name("streamed"), run(streaming, Numerics::kExact), bytes, operations);
      if (rows <= 8) Print(name("fast"), run(limits, Numerics::kFast), bytes, operations);
      Print(name("cuBLASLt"),
            Time([&](int i) { library->Run(x.view(i), w.view(i), {}, out.view(i), nullptr); }),
            bytes, operations);
    }
  }
}

// Decode rows of given context, all sequences alike; or prompts from their beginning.
void BenchAttention(const DeviceLimits& limits, const char* name, const HeadShape& heads,
                    int64_t sequences, int64_t context, int64_t rows_each, KvFormat format) {
  const int64_t blocks = (context + kBlockTokens - 1) / kBlockTokens, rows = sequences * rows_each;
  const int64_t half = KvBlocks::NumBytes(heads, kType, sequences * blocks, format) / 2;
  DeviceBuffer kv(2 * half);
  CUDA_CHECK(cudaMemset(kv.data(), 0, static_cast<size_t>(2 * half)));
  if (format == KvFormat::kModel) FillUniform(kv.data(), kType, half, -1, 1, 3, nullptr);
  std::vector<int32_t> positions, sequence_of, tables(sequences * blocks);
  // Blocks anywhere in the cache, as after many sequences came and went.
  std::iota(tables.begin(), tables.end(), 0);
  for (size_t i = tables.size() - 1; i > 0; --i) std::swap(tables[i], tables[i * 7919 % (i + 1)]);
  for (int64_t s = 0; s < sequences; ++s) {
    for (int64_t i = 0; i < rows_each; ++i) {
      positions.push_back(static_cast<int32_t>(context - rows_each + i));
      sequence_of.push_back(static_cast<int32_t>(s));
    }
  }
  AttentionDivision division;
  if (rows_each > 1) division = DivideRows(positions, sequence_of, heads);
  const DeviceBuffer d_positions = Upload(positions), d_sequences = Upload(sequence_of),
                     d_tables = Upload(tables), tiles = Upload(division.tiles),
                     lone = Upload(division.lone_rows);
  AttentionRows at;
  at.positions = d_positions.as<int32_t>();
  at.sequence_of = d_sequences.as<int32_t>();
  at.block_tables = d_tables.as<int32_t>();
  at.table_stride = blocks;
  at.tiles = tiles.as<AttentionTile>();
  at.num_tiles = static_cast<int64_t>(division.tiles.size());
  at.lone_rows = lone.as<int32_t>();
  at.num_lone_rows = static_cast<int64_t>(division.lone_rows.size());
  const AttentionPlan plan = PlanAttention(heads, at.num_alone(rows), context - 1, limits);
  const DeviceBuffer workspace(std::max<int64_t>(plan.workspace_bytes, 16));
  CUDA_CHECK(cudaMemset(workspace.data(), 0, static_cast<size_t>(workspace.bytes())));
  const Copies qkv(rows, heads.qkv_width()), out(rows, heads.q_width());
  const KvBlocks cache{kv.data(),          kv.data() + half, kType, sequences * blocks,
                       heads.num_kv_heads, heads.head_dim,   format};
  const float scale = 1 / std::sqrt(static_cast<float>(heads.head_dim));
  const double us = Time([&](int i) {
    Attention(qkv.view(i), heads, scale, at, cache, plan, workspace.data(), out.view(i), nullptr);
  });
  double pairs = 0;  // of query rows and keys
  for (const int32_t p : positions) pairs += p + 1;
  Print(fmt::format("attention {}{}: {} x {} rows, context {}", name,
                    format == KvFormat::kFloat8 ? " float8" : "", sequences, rows_each, context),
        us, static_cast<double>(2 * half) + 4.0 * static_cast<double>(rows * heads.q_width()),
        4.0 * pairs * static_cast<double>(heads.q_width()));
}

void BenchAttentions(const DeviceLimits& limits) {
  const HeadShape moe{32, 4, 128}, dense{32, 8, 128}, smol{9, 3, 64};
  for (const KvFormat format : {KvFormat::kModel, KvFormat::kFloat8}) {
    for (const int64_t sequences : {1, 8, 64, 512}) {
      BenchAttention(limits, "30b-a3b", moe, sequences, 1024, 1, format);
    }
    BenchAttention(limits, "8b", dense, 64, 4096, 1, format);
    BenchAttention(limits, "8b", dense, 256, 4096, 1, format);
    BenchAttention(limits, "smollm2", smol, 1024, 200, 1, format);
    BenchAttention(limits, "smollm2", smol, 1024, 300, 1, format);
    BenchAttention(limits, "30b-a3b prompts", moe, 8, 1024, 1024, format);
    BenchAttention(limits, "30b-a3b prompt", moe, 1, 32768, 8192, format);
  }
}

void BenchRows(int64_t rows, int64_t d, const HeadShape& heads, const char* name) {
  const Copies x(rows, d), delta(rows, d), w(1, d), out(rows, d);
  Delta add;
  Print(fmt::format("add, norm {}: {} rows of {}", name, rows, d), Time([&](int i) {
          add.rows = delta.view(i);
          AddRmsNorm(x.view(i), add, w.view(0), 1e-6f, x.view(i), out.view(i), nullptr);
        }),
        4.0 * static_cast<double>(x.bytes()), 0);
  const int64_t blocks = (rows + kBlockTokens - 1) / kBlockTokens;
  const Copies qkv(rows, heads.qkv_width()), norm(1, heads.head_dim),
      rope(4096, heads.head_dim, DType::kFloat32), kv(2 * blocks * kBlockTokens, heads.kv_width());
  std::vector<int32_t> order(rows);
  std::iota(order.begin(), order.end(), 0);
  std::vector<int32_t> places(rows);
  for (int64_t i = 0; i < rows; ++i) places[i] = static_cast<int32_t>(i % 4096);
  const DeviceBuffer slots = Upload(order), positions = Upload(places);
  QkNormRopeArgs args;
  args.heads = heads;
  args.q_norm = args.k_norm = norm.view(0);
  args.eps = 1e-6f;
  args.rope = rope.view(0).f32();
  args.positions = positions.as<int32_t>();
  args.slots = slots.as<int32_t>();
  Print(fmt::format("norm, rotation, cache {}: {} rows", name, rows), Time([&](int i) {
          const TensorView cache = kv.view(i);
          const KvBlocks to{cache.data,
                            static_cast<char*>(cache.data) + kv.bytes() / 2,
                            kType,
                            blocks,
                            heads.num_kv_heads,
                            heads.head_dim};
          QkNormRopeWriteKv(qkv.view(i), args, to, nullptr);
        }),
        2.0 * static_cast<double>(qkv.bytes()), 0);
}

// Norm, router and choice of experts: one kernel and three, in a chain as in a layer: the rows are
// in L2, the routers are not.
void BenchNormRoute(const DeviceLimits& limits, int64_t rows) {
  constexpr int kCalls = 64;  // more than Time makes: counts are cleared once for all
  const ExpertsShape shape{128, 8, 2048, 768};
  const Copies x(rows, shape.d), delta(rows, shape.d), norm(1, shape.d), normed(rows, shape.d),
      router(shape.num_experts, shape.d), logits(rows, shape.num_experts, DType::kFloat32);
  const DeviceBuffer weights(4 * rows * shape.top_k), experts(4 * rows * shape.top_k),
      counts(4 * shape.num_experts * kCalls), slots(4 * shape.num_experts * rows);
  const DeviceBuffer positions = Upload(std::vector<int32_t>(static_cast<size_t>(rows), 0));
  const auto routing = [&](int i) {
    return Routing{weights.as<float>(), experts.as<int32_t>(),
                   counts.as<int32_t>() + i % kCalls * shape.num_experts, slots.as<int32_t>(),
                   rows};
  };
  const DeviceBuffer others(kL2Bytes);
  const auto time = [&](const std::function<void(int)>& call) {
    CUDA_CHECK(cudaMemset(others.data(), 0, static_cast<size_t>(others.bytes())));
    CUDA_CHECK(cudaMemset(counts.data(), 0, static_cast<size_t>(counts.bytes())));
    return Time(call);
  };
  const double bytes = static_cast<double>(4 * x.bytes() + router.bytes());
  const double operations = 2.0 * static_cast<double>(rows * shape.num_experts * shape.d);
  for (const Numerics numerics : {Numerics::kExact, Numerics::kFast}) {
    const char* name = numerics == Numerics::kExact ? "exact" : "fast";
    const auto one_by_one = [&](int i) {
      Delta add;
      add.rows = delta.view(0);
      AddRmsNorm(x.view(0), add, norm.view(0), 1e-6f, x.view(0), normed.view(0), nullptr);
      Linear(normed.view(0), router.view(i), {}, limits, logits.view(0), nullptr, numerics);
      RouteTopK(logits.view(0), shape, positions.as<int32_t>(), {}, routing(i), nullptr);
    };
    Print(fmt::format("norm; router; top 8 of 128 and lists, {}: {} rows", name, rows),
          time(one_by_one), bytes, operations);
    if (!PlanNormRoute(kType, rows, shape.d, shape.num_experts, limits)) continue;
    NormRouteArgs args;
    args.x = args.sum = x.view(0);
    args.delta = delta.view(0);
    args.out = normed.view(0);
    args.norm = norm.view(0);
    args.eps = 1e-6f;
    args.shape = shape;
    args.positions = positions.as<int32_t>();
    const auto fused = [&](int i) {
      args.router = router.view(i);
      args.routing = routing(i);
      NormRoute(args, limits, nullptr, numerics);
    };
    Print(fmt::format("norm, router, top 8 of 128 and lists, {}: {} rows", name, rows), time(fused),
          bytes, operations);
  }
}

void BenchExperts(const DeviceLimits& limits, int64_t rows) {
  ExpertsShape shape;
  shape.num_experts = 128;
  shape.top_k = 8;
  shape.d = 2048;
  shape.f = 768;
  const Copies x(rows, shape.d), logits(rows, shape.num_experts, DType::kFloat32),
      gate_up(shape.num_experts * 2 * shape.f, shape.d), down(shape.num_experts * shape.d, shape.f),
      hidden(rows * shape.top_k, shape.f), y(rows * shape.top_k, shape.d);
  const DeviceBuffer weights(4 * rows * shape.top_k), experts(4 * rows * shape.top_k),
      counts(4 * shape.num_experts), slots(4 * shape.num_experts * rows);
  const std::vector<int32_t> all(static_cast<size_t>(rows), 0);
  const DeviceBuffer positions = Upload(all);
  Routing routing{weights.as<float>(), experts.as<int32_t>(), counts.as<int32_t>(),
                  slots.as<int32_t>(), rows};
  const auto route = [&](int i) {
    CUDA_CHECK(cudaMemsetAsync(counts.data(), 0, static_cast<size_t>(counts.bytes()), nullptr));
    RouteTopK(logits.view(i), shape, positions.as<int32_t>(), {}, routing, nullptr);
  };
  Print(fmt::format("top 8 of 128 and lists (memset included): {} rows", rows), Time(route),
        static_cast<double>(logits.bytes()), 0);
  route(0);
  std::vector<int32_t> host(static_cast<size_t>(shape.num_experts));
  CUDA_CHECK(cudaMemcpy(host.data(), counts.data(), host.size() * 4, cudaMemcpyDeviceToHost));
  const auto touched =
      static_cast<double>(std::count_if(host.begin(), host.end(), [](int32_t n) { return n > 0; }));
  const double matrix = static_cast<double>(shape.f * shape.d) * 2;
  const double operations = 2.0 * static_cast<double>(rows * shape.top_k * shape.f * shape.d);
  Print(fmt::format("experts, gate and up 30b-a3b: {} rows", rows), Time([&](int i) {
          ExpertsGateUp(x.view(i), gate_up.view(i), shape, routing, limits, hidden.view(i),
                        nullptr);
        }),
        touched * 2 * matrix + static_cast<double>(x.bytes() + hidden.bytes()), 2 * operations);
  Print(fmt::format("experts, down 30b-a3b: {} rows", rows), Time([&](int i) {
          ExpertsDown(hidden.view(i), down.view(i), shape, routing, limits, y.view(i), nullptr);
        }),
        touched * matrix + static_cast<double>(hidden.bytes() + y.bytes()), operations);
}

// The training forward's products, and the whole gradient.
void BenchExpertsGrad(const DeviceLimits& limits, int64_t rows) {
  const ExpertsShape s{128, 8, 2048, 768};
  const int64_t slots = rows * s.top_k;
  const Copies x(rows, s.d), logits(rows, s.num_experts, DType::kFloat32),
      w_gate_up(s.num_experts * 2 * s.f, s.d), w_down(s.num_experts * s.d, s.f),
      dw_gate_up(s.num_experts * 2 * s.f, s.d, DType::kFloat32),
      dw_down(s.num_experts * s.d, s.f, DType::kFloat32), gate_up(slots, 2 * s.f),
      hidden(slots, s.f), y(slots, s.d), dout(rows, s.d), dx(rows, s.d);
  const DeviceBuffer weights(4 * slots), dweights(4 * slots), experts(4 * slots),
      counts(4 * s.num_experts), lists(4 * s.num_experts * rows),
      workspace(RoutedExpertsGradWorkspaceBytes(s, rows, kType));
  const DeviceBuffer positions = Upload(std::vector<int32_t>(static_cast<size_t>(rows), 0));
  const Routing routing{weights.as<float>(), experts.as<int32_t>(), counts.as<int32_t>(),
                        lists.as<int32_t>(), rows};
  CUDA_CHECK(cudaMemset(counts.data(), 0, static_cast<size_t>(counts.bytes())));
  RouteTopK(logits.view(0), s, positions.as<int32_t>(), {}, routing, nullptr);
  SortExpertLists(routing, s, rows, nullptr);
  const auto down = static_cast<double>(w_down.bytes());
  const double operations = 2.0 * static_cast<double>(slots * s.f * s.d);
  Print(fmt::format("experts, training forward's gate and up: {} rows", rows), Time([&](int i) {
          ExpertsLinear(x.view(i), s.top_k, w_gate_up.view(i), s, routing, limits, gate_up.view(i),
                        nullptr);
        }),
        2 * down + static_cast<double>(x.bytes() + gate_up.bytes()), 2 * operations);
  Print(fmt::format("experts, training forward's down: {} rows", rows), Time([&](int i) {
          ExpertsLinear(hidden.view(i), 1, w_down.view(i), s, routing, limits, y.view(i), nullptr);
        }),
        down + static_cast<double>(hidden.bytes() + y.bytes()), operations);
  Print(fmt::format("experts, gradient: {} rows", rows), Time([&](int i) {
          RoutedExpertsGrad(
              {dout.view(i), x.view(i), gate_up.view(i), w_gate_up.view(i), w_down.view(i), routing,
               dx.view(i), dweights.as<float>(), dw_gate_up.view(i), dw_down.view(i)},
              s, limits, workspace.data(), nullptr);
        }),
        3 * down + 3 * 4 * down, 6 * operations);  // the weights' gradients read and written
}

void BenchSampler(int64_t rows, int64_t vocabulary, const char* what, const SamplerRow& row) {
  const Copies logits(rows, vocabulary);
  std::vector<SamplerRow> host(static_cast<size_t>(rows), row);
  for (int64_t i = 0; i < rows; ++i) host[i].seed = static_cast<uint64_t>(i), host[i].active = 1;
  const DeviceBuffer device = Upload(host), workspace(SamplerWorkspaceBytes(rows, vocabulary)),
                     ids(4 * rows), logprobs(4 * rows), entropies(4 * rows), finite(4 * rows);
  const SamplerOutput out{ids.as<int32_t>(), logprobs.as<float>(), entropies.as<float>(),
                          finite.as<int32_t>()};
  Print(fmt::format("sampler, {}: {} rows of {}", what, rows, vocabulary), Time([&](int i) {
          SampleTokens(logits.view(i), device.as<SamplerRow>(), workspace.data(), out, nullptr);
        }),
        static_cast<double>(logits.bytes()), 0);
}

int Main(int argc, char** argv) {
  const absl::StatusOr<DeviceLimits> limits = QueryDeviceLimits(0);
  const auto library = LinearLibrary::Create();
  if (!limits.ok() || !library.ok()) {
    fmt::print("no GPU, or no cuBLASLt, to measure\n");
    return 1;
  }
  const std::set<std::string> wanted(argv + 1, argv + argc);
  const auto wants = [&](const char* what) { return wanted.empty() || wanted.contains(what); };
  MeasureCeilings(library->get());
  if (wants("linear")) BenchLinear(*limits, library->get());
  if (wants("attention")) BenchAttentions(*limits);
  if (wants("rows")) {
    for (const int64_t rows : {1, 512, 8192}) BenchRows(rows, 2048, {32, 4, 128}, "30b-a3b");
    BenchRows(1024, 576, {9, 3, 64}, "smollm2");
  }
  if (wants("experts") || wants("route")) {
    for (const int64_t rows : {1, 8, 64}) BenchNormRoute(*limits, rows);
  }
  if (wants("experts")) {
    for (const int64_t rows : {1, 8, 64, 256, 512, 1024, 8192}) BenchExperts(*limits, rows);
  }
  if (wants("experts_grad")) {
    for (const int64_t rows : {4096, 16384}) BenchExpertsGrad(*limits, rows);
  }
  if (wants("sampler")) {
    SamplerRow filtered, peaked, flat;
    filtered.top_k = 50;
    filtered.top_p = 0.9f;
    peaked.temperature = 0.01f;  // logits lie in [-1, 1]
    peaked.top_p = flat.top_p = 0.9f;
    for (const int64_t rows : {1, 64, 512}) {
      BenchSampler(rows, 151936, "plain", {});
      BenchSampler(rows, 151936, "top k and top p", filtered);
      BenchSampler(rows, 151936, "top p of few", peaked);
      BenchSampler(rows, 151936, "top p of most", flat);
    }
  }
  return 0;
}

}  // namespace
}  // namespace orrery::kernels::cuda

int main(int argc, char** argv) { return orrery::kernels::cuda::Main(argc, argv); }
