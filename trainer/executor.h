// Who computes for the trainer: forward and backward of micro-batches, the optimizer, and the
// weights that both change and read. PolicyTrainer knows neither the device nor where anything
// lies. One thread calls; an executor may call back from several.
//
//   ForwardBackward(micro-batches) -> GradNorm() -> Step(norm, learning rate)
#pragma once

#include <functional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "orchestrator/types.h"
#include "trainer/model/model_spec.h"
#include "trainer/packer.h"

namespace orrery::trainer {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double clip_grad_norm = 1;  // 0: off

  // What a gradient of this norm is multiplied by.
  float ClipScale(double grad_norm) const {
    return clip_grad_norm > 0 && grad_norm > clip_grad_norm
               ? static_cast<float>(clip_grad_norm / (grad_norm + 1e-6))
               : 1.0f;
  }
};

struct ExecutorOptions {
  AdamWOptions optimizer;
  bool recompute = false;  // of every block in its backward, instead of keeping what is inside
};

// Of one micro-batch's targets, in order.
struct TokenScores {
  std::span<const float> logprobs, entropies;
  int64_t bad = -1;  // the first target whose logits are not finite
  // Routing replay: of (row, layer with experts), those whose own top k is another set of experts.
  int64_t differing_routing = 0;
};

enum class WeightsOf : uint8_t { kPolicy, kReference };

class Executor {
 public:
  // micro: index into the span given. Called once a micro-batch.
  using ScoreFn = std::function<absl::Status(size_t micro, const TokenScores& scores)>;
  using LossFn =
      std::function<absl::Status(size_t micro, const TokenScores& scores,
                                 std::span<float> dlogprobs, std::span<float> dentropies)>;

  virtual ~Executor() = default;

  virtual const model::ModelSpec& spec() const = 0;
  virtual kernels::DType dtype() const = 0;
  virtual bool has_reference() const = 0;
  virtual PolicyVersion version() const = 0;
  virtual int64_t optimizer_steps() const = 0;

  // Log-probs and entropies at a temperature (0: at 1). The first error of `score`, in order of
  // micro-batches.
  virtual absl::Status Score(WeightsOf weights, std::span<const MicroBatch> micros,
                             float temperature, const ScoreFn& score) = 0;
  // The gradient of all micro-batches, summed in their order, replaces the one held. An error of
  // `loss` leaves it unspecified.
  virtual absl::Status ForwardBackward(std::span<const MicroBatch> micros, float temperature,
                                       const LossFn& loss) = 0;

  // Of the gradient held, before clipping; not finite where the gradient is not.
  virtual double GradNorm() = 0;
  // Clips by the norm, steps, and commits the weights as the next version. Returns the seconds that
  // the commit took. REQUIRES: the norm is finite.
  virtual double Step(double grad_norm, double learning_rate) = 0;

  // The gradient held, float32 in flat order.
  virtual std::vector<float> Gradient() const = 0;

  // Hugging Face weights and optimizer state into (from) an existing folder.
  virtual absl::Status Save(const std::string& folder) = 0;
  virtual absl::Status Load(const std::string& folder) = 0;
};

}  // namespace orrery::trainer
