#include "trainer/optimizer_file.h"

#include <charconv>
#include <cstdint>

#include "kernels/cpu/thread_pool.h"
#include "orchestrator/base/status.h"
#include "trainer/model/safetensors.h"
#include "trainer/model/safetensors_writer.h"

namespace orrery::trainer {
namespace {

constexpr char kFileName[] = "/optimizer.safetensors";

model::TensorSource FlatSource(const char* name, std::span<const float> values) {
  return model::FromBytes(name, model::FileDtype::kF32, {static_cast<int64_t>(values.size())},
                          std::as_bytes(values));
}

absl::Status LoadFlat(const model::SafetensorsFile& file, const std::string& path, const char* name,
                      size_t num_elements, std::vector<float>* to) {
  const model::FileTensor* tensor = file.Find(name);
  if (tensor == nullptr || tensor->num_elements() != static_cast<int64_t>(num_elements)) {
    return InvalidInput(
        "{}: \"{}\" is missing or not of {} elements: the checkpoint belongs to "
        "another model",
        path, name, num_elements);
  }
  const std::byte* data = tensor->data.data();
  const bool aligned = reinterpret_cast<uintptr_t>(data) % alignof(float) == 0;
  if (tensor->dtype == model::FileDtype::kF32 && aligned) {  // as written here: no zeros before it
    const auto* values = reinterpret_cast<const float*>(data);
    to->assign(values, values + num_elements);
    return absl::OkStatus();
  }
  to->resize(num_elements);
  return model::ToFloat32(*tensor, *to);
}

absl::StatusOr<int64_t> LoadSteps(const model::SafetensorsFile& file, const std::string& path) {
  const auto found = file.metadata().find("steps");
  const std::string text = found == file.metadata().end() ? "" : found->second;
  int64_t steps = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), steps);
  if (error != std::errc() || end != text.data() + text.size() || steps < 0) {
    return InvalidInput("{}: metadata \"steps\" is \"{}\", not a count", path, text);
  }
  return steps;
}

}  // namespace

absl::Status SaveOptimizer(const std::string& folder, std::span<const float> master,
                           std::span<const float> moment1, std::span<const float> moment2,
                           int64_t steps) {
  const std::vector<model::TensorSource> sources = {
      FlatSource("master", master), FlatSource("moment1", moment1), FlatSource("moment2", moment2)};
  return model::WriteSafetensors(folder + kFileName, sources,
                                 {{"format", "pt"}, {"steps", std::to_string(steps)}});
}

absl::StatusOr<OptimizerState> LoadOptimizer(const std::string& folder, size_t num_elements) {
  const std::string path = folder + kFileName;
  ASSIGN_OR_RETURN(const auto file, model::SafetensorsFile::Open(path));
  OptimizerState state;
  constexpr const char* kNames[] = {"master", "moment1", "moment2"};
  std::vector<float>* const to[] = {&state.master, &state.moment1, &state.moment2};
  for (std::vector<float>* buffer : to) buffer->reserve(num_elements);  // may throw: not in a task
  absl::Status statuses[3];
  kernels::ParallelFor(
      3, [&](int64_t i) { statuses[i] = LoadFlat(*file, path, kNames[i], num_elements, to[i]); });
  for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
  ASSIGN_OR_RETURN(state.steps, LoadSteps(*file, path));
  return state;
}

}  // namespace orrery::trainer
