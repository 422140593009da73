#include <algorithm>
#include <cstring>

#include "kernels/cpu/bfloat16.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/embedding/embedding.h"

namespace orrery::kernels {

void Embedding(const TensorView& table, std::span<const int32_t> token_ids, const TensorView& out) {
  CHECK_EQ(out.rows, static_cast<int64_t>(token_ids.size()));
  CHECK_EQ(out.cols, table.cols);
  for (int64_t t = 0; t < out.rows; ++t) {
    const int64_t id = token_ids[t];
    CHECK(id >= 0 && id < table.rows) << "token id " << id << " of a vocabulary of " << table.rows;
    if (table.dtype == DType::kFloat32) {
      std::memcpy(out.f32(t), table.f32(id), table.cols * sizeof(float));
    } else {
      const uint16_t* from = table.bf16(id);
      float* to = out.f32(t);
      for (int64_t i = 0; i < table.cols; ++i) to[i] = FromBFloat16(from[i]);
    }
  }
}

void EmbeddingGrad(const TensorView& dy, std::span<const int32_t> token_ids,
                   const TensorView& dtable) {
  constexpr int64_t kColumns = 128;  // a task owns columns, so that rows are added in token order
  ParallelFor((dy.cols + kColumns - 1) / kColumns, [&](int64_t task) {
    const int64_t end = std::min(dy.cols, (task + 1) * kColumns);
    for (int64_t t = 0; t < dy.rows; ++t) {
      float* to = dtable.f32(token_ids[t]);
      const float* from = dy.f32(t);
      for (int64_t i = task * kColumns; i < end; ++i) to[i] += from[i];
    }
  });
}

}  // namespace orrery::kernels
