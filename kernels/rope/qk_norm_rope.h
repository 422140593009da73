// What happens to the fused projection [T, (Hq + 2 Hkv) * D] between the linear layer and
// attention: optional per-head RMSNorm of queries and keys (Qwen3), then rotary position embedding
// in the half-split form (Su et al. 2021, as transformers' rotate_half):
//
//   (u_j, u_{j + D/2}) -> (u_j cos a_j - u_{j + D/2} sin a_j,  u_{j + D/2} cos a_j + u_j sin a_j),
//   a_j = position * inv_freq_j
//
// Values pass through. Angles, sines and cosines in float32 (bfloat16 ones cost token-level
// spikes). Rounding after the norm and after the rotation. out may be qkv.
#pragma once

#include <span>
#include <vector>

#include "kernels/tensor_view.h"

namespace orrery::kernels {

struct HeadShape {
  int64_t num_heads = 0;     // Hq
  int64_t num_kv_heads = 0;  // Hkv; divides Hq
  int64_t head_dim = 0;      // D, even

  int64_t group() const { return num_heads / num_kv_heads; }
  int64_t q_width() const { return num_heads * head_dim; }
  int64_t kv_width() const { return num_kv_heads * head_dim; }
  int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
};

// cos and sin of every position below `positions`: row p is [cos(a_0..a_{D/2-1}), sin(...)].
class RopeTable {
 public:
  // inv_freq: D/2 values (scaled variants, as Llama 3's, come with theirs). attention_scale
  // multiplies sines and cosines (1 but for YaRN).
  RopeTable(std::span<const float> inv_freq, int64_t positions);
  const float* Row(int64_t position) const {
    CHECK(position >= 0 && position < positions_) << "position " << position;
    return table_.data() + position * 2 * half_;
  }
  int64_t positions() const { return positions_; }

 private:
  int64_t half_, positions_;
  std::vector<float> table_;
};

struct QkNormRopeArgs {
  HeadShape heads;
  const float* q_norm = nullptr;  // [D] or null: no norm
  const float* k_norm = nullptr;
  float eps = 0;
  const RopeTable* rope = nullptr;
  std::span<const int32_t> positions;  // [T]
  Rounding rounding = Rounding::kNone;
};

void QkNormRope(const TensorView& qkv, const QkNormRopeArgs& args, const TensorView& out);

// dqkv: in, the gradient of the output; out, that of qkv. Adds to dq_norm, dk_norm [D] where given.
void QkNormRopeGrad(const TensorView& qkv, const QkNormRopeArgs& args, const TensorView& dqkv,
                    float* dq_norm, float* dk_norm);

// One head at one position in double (the angle in float32, as the definition has it), for tests.
// norm: [d] or null.
void QkNormRopeReference(const float* head, int64_t d, const float* norm, double eps,
                         const float* inv_freq, int32_t position, double* out);

}  // namespace orrery::kernels
