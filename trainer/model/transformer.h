// The one transformer. Forward reads like the paper and is run by whoever samples and whoever
// trains: what differs between them (autograd, where keys and values live, which kernels) is behind
// Ops.
//
// An activation is a matrix of one row a token of the packed batch. Value is a handle: the memory
// and an id by which an executor that records gradients finds it again.
#pragma once

#include <functional>
#include <span>
#include <utility>

#include "kernels/attention/attention.h"
#include "kernels/tensor_view.h"
#include "trainer/model/model_spec.h"
#include "trainer/model/weight_store.h"

namespace orrery::model {

// Packed tokens of several sequences. Spans are borrowed for the length of a Forward.
struct Batch {
  std::span<const int32_t> token_ids;  // [T]
  std::span<const int32_t> positions;  // [T] absolute, below max_positions
  std::span<const int32_t> slots;      // [T] where keys and values go: block * 16 + offset
  std::span<const kernels::SequenceSpan> sequences;  // rows of all sequences, in order
  // Done in every layer after keys and values were written, before attention.
  std::span<const kernels::KvCopy> copies;
  // Routing replay: [layers with experts, T, top_k] expert ids, or empty.
  std::span<const int32_t> replay_experts;

  int64_t num_tokens() const { return static_cast<int64_t>(token_ids.size()); }
};

struct Value {
  kernels::TensorView view;
  int32_t id = -1;
};

// The residual stream between blocks: its value is residual + delta. Kept apart, so that the
// addition can be fused with the norm that reads it. delta is empty before the first block.
struct Stream {
  Value residual;
  Value delta;
};

// One method per operator. Parameters are named by id; an executor knows its WeightStore.
class Ops {
 public:
  virtual ~Ops() = default;
  virtual Value Embed(ParamId table, const Batch& batch) = 0;
  // residual + delta, and its norm.
  virtual std::pair<Value, Value> AddNorm(const Stream& stream, ParamId weight) = 0;
  // The hook where adapters go.
  virtual Value Linear(const Value& x, ParamId weight, ParamId bias) = 0;
  // Norms and rotates queries and keys; writes keys and values of this layer.
  virtual Value QkNormRope(const Value& qkv, int64_t layer, const Batch& batch) = 0;
  virtual Value Attention(const Value& qkv, int64_t layer, const Batch& batch) = 0;
  virtual Value SwiGlu(const Value& gate_up) = 0;
  virtual Value RoutedExperts(const Value& x, int64_t layer, const Batch& batch) = 0;
  // The sum over tensor-parallel ranks; nothing on one rank.
  virtual Value Reduce(const Value& x) { return x; }
  // Runs one block; an executor may forget what is inside and run it again for the gradient.
  virtual Stream Block(const Stream& in, const std::function<Stream(const Stream&)>& block) {
    return block(in);
  }
};

// Final normed hidden states [T, d] of all rows: the head's input.
Value Forward(const ModelSpec& spec, const WeightLayout& layout, const Batch& batch, Ops& ops);

}  // namespace orrery::model
