#include "trainer/model/transformer.h"

namespace orrery::model {
namespace {

Value SelfAttention(const LayerParams& p, int64_t layer, const Value& h, const Batch& batch,
                    Ops& ops) {
  const Value qkv = ops.QkNormRope(ops.Linear(h, p.qkv, p.qkv_bias), layer, batch);
  return ops.Reduce(ops.Linear(ops.Attention(qkv, layer, batch), p.output, p.output_bias));
}

Value Mlp(const ModelSpec& spec, const LayerParams& p, int64_t layer, const Value& h,
          const Batch& batch, Ops& ops) {
  if (spec.moe(layer)) return ops.Reduce(ops.RoutedExperts(h, layer, batch));
  return ops.Reduce(ops.Linear(ops.SwiGlu(ops.Linear(h, p.gate_up, kNoParam)), p.down, kNoParam));
}

}  // namespace

Value Forward(const ModelSpec& spec, const WeightLayout& layout, const Batch& batch, Ops& ops) {
  Stream x{ops.Embed(layout.embedding, batch), {}};
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
    const LayerParams& p = layout.layers[layer];
    // An executor may keep the block to run it again: it holds no local of this loop by reference.
    x = ops.Block(x, [&spec, &p, layer, &batch, &ops](const Stream& in) -> Stream {
      const auto [residual, h] = ops.AddNorm(in, p.input_norm);
      const Stream mid{residual, SelfAttention(p, layer, h, batch, ops)};
      const auto [after, g] = ops.AddNorm(mid, p.post_norm);
      return {after, Mlp(spec, p, layer, g, batch, ops)};
    });
  }
  return ops.AddNorm(x, layout.final_norm).second;
}

}  // namespace orrery::model
