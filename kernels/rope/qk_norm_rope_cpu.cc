#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/bfloat16.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/qk_norm_rope.h"

namespace orrery::kernels {
namespace {

constexpr int64_t kTaskRows = 32;

void Rotate(const float* cos_sin, int64_t half, Rounding rounding, float* u) {
  const float* sin = cos_sin + half;
  for (int64_t j = 0; j < half; ++j) {
    const float a = u[j], b = u[j + half];
    u[j] = a * cos_sin[j] - b * sin[j];
    u[j + half] = b * cos_sin[j] + a * sin[j];
  }
  if (rounding == Rounding::kBFloat16) {
    for (int64_t j = 0; j < 2 * half; ++j) u[j] = RoundToBFloat16(u[j]);
  }
}

// The transpose of the rotation.
void RotateBack(const float* cos_sin, int64_t half, float* u) {
  const float* sin = cos_sin + half;
  for (int64_t j = 0; j < half; ++j) {
    const float a = u[j], b = u[j + half];
    u[j] = a * cos_sin[j] + b * sin[j];
    u[j + half] = b * cos_sin[j] - a * sin[j];
  }
}

}  // namespace

RopeTable::RopeTable(std::span<const float> inv_freq, int64_t positions)
    : half_(static_cast<int64_t>(inv_freq.size())),
      positions_(positions),
      table_(static_cast<size_t>(positions * 2 * half_)) {
  for (int64_t p = 0; p < positions; ++p) {
    float* row = table_.data() + p * 2 * half_;
    for (int64_t j = 0; j < half_; ++j) {
      const float angle = static_cast<float>(p) * inv_freq[j];
      row[j] = std::cos(angle);
      row[j + half_] = std::sin(angle);
    }
  }
}

void QkNormRope(const TensorView& qkv, const QkNormRopeArgs& args, const TensorView& out) {
  const HeadShape& s = args.heads;
  const int64_t d = s.head_dim;
  CHECK_EQ(qkv.cols, s.qkv_width());
  CHECK_EQ(out.cols, s.qkv_width());
  CHECK_EQ(qkv.rows, static_cast<int64_t>(args.positions.size()));
  ParallelFor((qkv.rows + kTaskRows - 1) / kTaskRows, [&](int64_t task) {
    const int64_t end = std::min(qkv.rows, (task + 1) * kTaskRows);
    for (int64_t t = task * kTaskRows; t < end; ++t) {
      const float* cos_sin = args.rope->Row(args.positions[t]);
      float* to = out.f32(t);
      if (to != qkv.f32(t)) std::memcpy(to, qkv.f32(t), s.qkv_width() * sizeof(float));
      for (int64_t h = 0; h < s.num_heads + s.num_kv_heads; ++h) {
        float* head = to + h * d;
        const float* norm = h < s.num_heads ? args.q_norm : args.k_norm;
        if (norm != nullptr) RmsNormRow(head, d, norm, args.eps, args.rounding, head);
        Rotate(cos_sin, d / 2, args.rounding, head);
      }
    }
  });
}

void QkNormRopeGrad(const TensorView& qkv, const QkNormRopeArgs& args, const TensorView& dqkv,
                    float* dq_norm, float* dk_norm) {
  const HeadShape& s = args.heads;
  const int64_t d = s.head_dim;
  const int64_t tasks = (qkv.rows + kTaskRows - 1) / kTaskRows;
  std::vector<float> parts(static_cast<size_t>(tasks * 2 * d), 0.0f);
  ParallelFor(tasks, [&](int64_t task) {
    float* part = parts.data() + task * 2 * d;
    std::vector<float> dhead(static_cast<size_t>(d));
    const int64_t end = std::min(qkv.rows, (task + 1) * kTaskRows);
    for (int64_t t = task * kTaskRows; t < end; ++t) {
      const float* cos_sin = args.rope->Row(args.positions[t]);
      for (int64_t h = 0; h < s.num_heads + s.num_kv_heads; ++h) {
        float* grad = dqkv.f32(t) + h * d;
        RotateBack(cos_sin, d / 2, grad);
        const bool is_q = h < s.num_heads;
        const float* norm = is_q ? args.q_norm : args.k_norm;
        if (norm == nullptr) continue;
        RmsNormGradRow(grad, qkv.f32(t) + h * d, d, norm, args.eps, /*accumulate=*/false,
                       dhead.data(), part + (is_q ? 0 : d));
        std::memcpy(grad, dhead.data(), d * sizeof(float));
      }
    }
  });
  for (int64_t task = 0; task < tasks; ++task) {
    const float* part = parts.data() + task * 2 * d;
    for (int64_t i = 0; dq_norm != nullptr && i < d; ++i) dq_norm[i] += part[i];
    for (int64_t i = 0; dk_norm != nullptr && i < d; ++i) dk_norm[i] += part[d + i];
  }
}

}  // namespace orrery::kernels
