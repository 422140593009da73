#include "trainer/recording_ops.h"

#include <memory>
#include <utility>

#include "orchestrator/base/check.h"

namespace orrery::trainer {

using kernels::TensorView;
using model::Stream;
using model::Value;

namespace {

bool Empty(const Value& value) { return value.view.data == nullptr; }

}  // namespace

void RecordingOps::BeginTape(bool record) {
  record_ = record;
  forgetting_ = inside_ = false;
  lifetime_ = Lifetime::kMicroBatch;
  gradients_.clear();
  tape_.clear();
  active_tape_ = &tape_;
}

Value RecordingOps::Make(int64_t rows, int64_t cols) {
  return Adopt(Allocate(lifetime_, rows, cols));
}

Value RecordingOps::Adopt(const TensorView& view) {
  gradients_.push_back({{}, false, inside_ ? Lifetime::kBlock : Lifetime::kMicroBatch});
  return {view, static_cast<int32_t>(gradients_.size()) - 1};
}

RecordingOps::Gradient& RecordingOps::GradOf(const Value& value) {
  Gradient& g = gradients_[value.id];
  if (g.view.data == nullptr) {
    g.view = Allocate(g.lifetime, value.view.rows, value.view.cols);
  }
  return g;
}

void RecordingOps::SetGradient(const Value& value, const TensorView& view) {
  gradients_[value.id].view = view;
  gradients_[value.id].written = true;
}

void RecordingOps::ShareGradient(const TensorView& of_sum, const Stream& terms) {
  // Made outside of the block where the terms are its inputs.
  const TensorView made = gradients_[terms.residual.id].view;
  if (made.data != nullptr) Copy(of_sum, made);
  for (const Value& term : {terms.residual, terms.delta}) {
    SetGradient(term, made.data != nullptr ? made : of_sum);
  }
}

void RecordingOps::Record(Step step) {
  if (recording()) active_tape_->push_back(std::move(step));
}

void RecordingOps::Replay() {
  CHECK(record_);
  RunTape(&tape_);
}

void RecordingOps::RunTape(std::vector<Step>* tape) {
  while (!tape->empty()) {
    const Step step = std::move(tape->back());
    tape->pop_back();
    step();
  }
}

void RecordingOps::MakeInputGradients(const Stream& in) {
  Gradient& g = gradients_[in.residual.id];
  CHECK(g.view.data == nullptr);
  g.view = Allocate(Lifetime::kMicroBatch, in.residual.view.rows, in.residual.view.cols);
  if (!Empty(in.delta)) gradients_[in.delta.id].view = g.view;
}

Stream RecordingOps::Block(const Stream& in, const std::function<Stream(const Stream&)>& block) {
  if (!record_) return ScoreBlock(in, block);
  if (recompute_) return ForgetfulBlock(in, block);
  const auto inner = std::make_shared<std::vector<Step>>();
  active_tape_ = inner.get();
  inside_ = true;
  const Stream out = block(in);
  inside_ = false;
  active_tape_ = &tape_;
  Record([this, in, inner] {
    MakeInputGradients(in);
    RunTape(inner.get());
    FreeBlock();
  });
  return out;
}

Stream RecordingOps::ScoreBlock(const Stream& in,
                                const std::function<Stream(const Stream&)>& block) {
  lifetime_ = Lifetime::kBlock;
  const Stream inside = block(in);
  lifetime_ = Lifetime::kMicroBatch;
  // Nobody reads the inputs again: the outputs take their memory.
  const Stream out{Adopt(in.residual.view),
                   Empty(in.delta) ? Make(inside.delta.view.rows, inside.delta.view.cols)
                                   : Adopt(in.delta.view)};
  if (inside.residual.view.data != out.residual.view.data) {
    Copy(inside.residual.view, out.residual.view);
  }
  Copy(inside.delta.view, out.delta.view);
  FreeBlock();
  return out;
}

Stream RecordingOps::ForgetfulBlock(const Stream& in,
                                    const std::function<Stream(const Stream&)>& block) {
  forgetting_ = true;
  lifetime_ = Lifetime::kBlock;
  const Stream inside = block(in);
  lifetime_ = Lifetime::kMicroBatch;
  forgetting_ = false;
  const Stream out{Make(inside.residual.view.rows, inside.residual.view.cols),
                   Make(inside.delta.view.rows, inside.delta.view.cols)};
  Copy(inside.residual.view, out.residual.view);
  Copy(inside.delta.view, out.delta.view);
  FreeBlock();
  Record([this, in, out, block] { RerunBlock(in, out, block); });
  return out;
}

void RecordingOps::RerunBlock(const Stream& in, const Stream& out,
                              const std::function<Stream(const Stream&)>& block) {
  MakeInputGradients(in);
  std::vector<Step> inner;
  active_tape_ = &inner;
  lifetime_ = Lifetime::kBlock;
  inside_ = true;
  const Stream inside = block(in);
  SetGradient(inside.residual, GradOf(out.residual).view);
  SetGradient(inside.delta, GradOf(out.delta).view);
  RunTape(&inner);
  inside_ = false;
  lifetime_ = Lifetime::kMicroBatch;
  active_tape_ = &tape_;
  FreeBlock();
}

}  // namespace orrery::trainer
