// What every training executor shares: values with gradients, and a tape of the steps that add
// them. An operator's forward records the step of its backward; Replay runs the tape from its end.
//
// Memory has two lifetimes: of the micro-batch, and of one block of the transformer. What is kept
// for the gradient lives as long as the micro-batch; the gradients inside a block live while its
// backward runs. With `recompute` what is inside a block is forgotten too, and run again when its
// gradient is due. Without recording (scores only) nothing inside a block is kept at all.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "trainer/model/transformer.h"

namespace orrery::trainer {

class RecordingOps : public model::Ops {
 public:
  model::Stream Block(const model::Stream& in,
                      const std::function<model::Stream(const model::Stream&)>& block) override;

 protected:
  enum class Lifetime : uint8_t { kMicroBatch, kBlock };
  using Step = std::function<void()>;
  struct Gradient {
    kernels::TensorView view;  // data null until first wanted
    bool written = false;
    Lifetime lifetime = Lifetime::kMicroBatch;
  };

  explicit RecordingOps(bool recompute) : recompute_(recompute) {}

  // Uninitialised memory of an activation or its gradient.
  virtual kernels::TensorView Allocate(Lifetime lifetime, int64_t rows, int64_t cols) = 0;
  // All memory of Lifetime::kBlock is free again.
  virtual void FreeBlock() = 0;
  virtual void Copy(const kernels::TensorView& from, const kernels::TensorView& to) = 0;

  // A micro-batch begins. record: Replay will follow.
  void BeginTape(bool record);
  bool recording() const { return record_ && !forgetting_; }
  // Of values made now.
  Lifetime lifetime() const { return lifetime_; }
  model::Value Make(int64_t rows, int64_t cols);
  // A value over memory that exists.
  model::Value Adopt(const kernels::TensorView& view);
  // Memory is made on first use.
  Gradient& GradOf(const model::Value& value);
  // Its gradient is `view` from now on.
  void SetGradient(const model::Value& value, const kernels::TensorView& view);
  // Both terms of a sum have its gradient, in one memory: the operator that made delta reads it
  // before anything is added to the residual's.
  void ShareGradient(const kernels::TensorView& of_sum, const model::Stream& terms);
  void Record(Step step);
  void Replay();

 private:
  model::Stream ScoreBlock(const model::Stream& in,
                           const std::function<model::Stream(const model::Stream&)>& block);
  model::Stream ForgetfulBlock(const model::Stream& in,
                               const std::function<model::Stream(const model::Stream&)>& block);
  void RerunBlock(const model::Stream& in, const model::Stream& out,
                  const std::function<model::Stream(const model::Stream&)>& block);
  // The gradients of a block's inputs outlive it: their memory is made outside of it, one for both.
  void MakeInputGradients(const model::Stream& in);
  void RunTape(std::vector<Step>* tape);

  const bool recompute_;
  bool record_ = false;
  bool forgetting_ = false;  // inside a block that will be run again
  bool inside_ = false;      // a block: gradients of values made now live as long as it
  Lifetime lifetime_ = Lifetime::kMicroBatch;
  std::vector<Gradient> gradients_;  // by value id
  std::vector<Step> tape_;
  std::vector<Step>* active_tape_ = &tape_;
};

}  // namespace orrery::trainer
