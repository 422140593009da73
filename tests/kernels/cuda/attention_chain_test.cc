// Attention in the chain of kernels of decode passes, each kernel launched while the one before it
// drains: what is fetched before the wait (AttentionRows::settled) has the bits of what is fetched
// behind it, with other inputs, keys and values in the same places every pass.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "kernels/attention/attention_cuda.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/fill.h"
#include "kernels/linear/linear_cuda.h"
#include "kernels/rope/qk_norm_rope_cuda.h"
#include "tests/kernels/cuda/device_array.h"

namespace orrery::kernels::cuda {
namespace {

constexpr DType kType = DType::kBFloat16;
constexpr int64_t kLayers = 3, kHidden = 256, kPasses = 60;

class CudaAttentionChainTest : public CudaTest {};

struct Sequence {
  int32_t context;        // positions before the first pass
  int32_t rows_each = 1;  // a pass
};

struct ChainCase {
  HeadShape heads;
  KvFormat format;
  std::vector<Sequence> sequences;
  bool tiles = false;  // where DivideRows finds any
};

// What a pass reads, as it lies in one buffer: four arrays of a number a row, then the tables.
struct PassInput {
  std::vector<int32_t> positions, slots, sequence_of, settled;
  std::vector<float> x;  // [rows, kHidden]
};

class Chain {
 public:
  Chain(Random* random, const ChainCase& c, const DeviceLimits& limits) : c_(c), limits_(limits) {
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    MakeTables(random);
    for (int64_t pass = 0; pass < kPasses; ++pass) inputs_.push_back(MakeInput(random, pass));
    rows_ = static_cast<int64_t>(inputs_[0].positions.size());
    const auto numbers = 4 * rows_ + static_cast<int64_t>(tables_.size());
    x_at_ = (4 * numbers + 255) / 256 * 256;
    input_bytes_ = x_at_ + 2 * rows_ * kHidden;
    host_ = PinnedBuffer(kPasses * input_bytes_);
    for (int64_t pass = 0; pass < kPasses; ++pass) Pack(pass);
    input_ = DeviceBuffer(input_bytes_);
    rope_ = DeviceBuffer(4 * positions() * c.heads.head_dim);
    FillUniform(rope_.data(), DType::kFloat32, rope_.bytes() / 4, -1, 1, 5, stream_);
    norm_ = Uniform(c.heads.head_dim, 1.5F, 6);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      w_qkv_.push_back(Uniform(c.heads.qkv_width() * kHidden, 0.1F, 10 + layer));
      w_out_.push_back(Uniform(kHidden * c.heads.q_width(), 0.1F, 20 + layer));
      caches_.emplace_back(KvBlocks::NumBytes(c.heads, kType, num_blocks_, c.format));
      out_.emplace_back(2 * rows_ * c.heads.q_width());
    }
    qkv_ = DeviceBuffer(2 * rows_ * c.heads.qkv_width());
    hidden_ = DeviceBuffer(2 * rows_ * kHidden);
    // The same every pass.
    if (c.tiles) division_ = DivideRows(inputs_[0].positions, inputs_[0].sequence_of, c.heads);
    tiles_ = Upload(division_.tiles);
    lone_rows_ = Upload(division_.lone_rows);
    plan_ = PlanAttention(c.heads, Rows(false).num_alone(rows_), positions() - 1, limits_);
    workspace_ = DeviceBuffer(std::max<int64_t>(plan_.workspace_bytes, 16));
    history_ = DeviceBuffer(kPasses * kLayers * out_[0].bytes());
  }
  ~Chain() {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }

  // Outputs of every pass and layer, as they lie.
  std::vector<uint8_t> Run(bool settled, bool graph) {
    CUDA_CHECK(cudaMemsetAsync(workspace_.data(), 0, workspace_.bytes(), stream_));
    CUDA_CHECK(cudaMemsetAsync(history_.data(), 0xff, history_.bytes(), stream_));
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      CUDA_CHECK(cudaMemsetAsync(caches_[layer].data(), 0, caches_[layer].bytes(), stream_));
      CUDA_CHECK(cudaMemsetAsync(out_[layer].data(), 0, out_[layer].bytes(), stream_));
      FillContexts(layer);
    }
    cudaGraphExec_t executable = nullptr;
    for (int64_t pass = 0; pass < kPasses; ++pass) {
      CUDA_CHECK(cudaMemcpyAsync(input_.data(), host_.data() + pass * input_bytes_, input_bytes_,
                                 cudaMemcpyHostToDevice, stream_));
      if (graph && pass == 1) executable = Capture(settled);
      if (executable != nullptr) {
        CUDA_CHECK(cudaGraphLaunch(executable, stream_));
      } else {
        Enqueue(settled);
      }
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        const int64_t bytes = out_[layer].bytes();
        CUDA_CHECK(cudaMemcpyAsync(history_.data() + (pass * kLayers + layer) * bytes,
                                   out_[layer].data(), bytes, cudaMemcpyDeviceToDevice, stream_));
      }
    }
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    if (graph) CUDA_CHECK(cudaGraphExecDestroy(executable));
    std::vector<uint8_t> bytes(static_cast<size_t>(history_.bytes()));
    CUDA_CHECK(cudaMemcpy(bytes.data(), history_.data(), bytes.size(), cudaMemcpyDeviceToHost));
    return bytes;
  }

 private:
  int64_t positions() const { return table_stride_ * kBlockTokens; }
  DeviceBuffer Uniform(int64_t n, float bound, uint64_t seed) const {
    DeviceBuffer buffer(2 * n);
    FillUniform(buffer.data(), kType, n, -bound, bound, seed, stream_);
    return buffer;
  }
  template <typename T>
  static DeviceBuffer Upload(const std::vector<T>& values) {
    DeviceBuffer buffer(static_cast<int64_t>(values.size() * sizeof(T)));
    if (values.empty()) return buffer;
    CUDA_CHECK(cudaMemcpy(buffer.data(), values.data(), values.size() * sizeof(T),
                          cudaMemcpyHostToDevice));
    return buffer;
  }
  static TensorView View(const DeviceBuffer& buffer, int64_t rows, int64_t cols) {
    return {buffer.data(), kType, rows, cols, cols};
  }
  int32_t Slot(int64_t sequence, int64_t position) const {
    return tables_[sequence * table_stride_ + position / kBlockTokens] * kBlockTokens +
           position % kBlockTokens;
  }

  // Blocks anywhere in the cache.
  void MakeTables(Random* random) {
    int64_t longest = 0;
    for (const Sequence& s : c_.sequences) {
      longest = std::max(longest, s.context + kPasses * s.rows_each);
    }
    table_stride_ = longest / kBlockTokens + 1;
    num_blocks_ = table_stride_ * static_cast<int64_t>(c_.sequences.size());
    tables_.resize(static_cast<size_t>(num_blocks_));
    std::iota(tables_.begin(), tables_.end(), 0);
    for (int64_t i = num_blocks_ - 1; i > 0; --i) {
      std::swap(tables_[i], tables_[random->Pick(0, i)]);
    }
  }
  PassInput MakeInput(Random* random, int64_t pass) const {
    PassInput in;
    for (size_t s = 0; s < c_.sequences.size(); ++s) {
      const Sequence& sequence = c_.sequences[s];
      const auto first = static_cast<int32_t>(sequence.context + pass * sequence.rows_each);
      for (int32_t i = 0; i < sequence.rows_each; ++i) {
        in.positions.push_back(first + i);
        in.slots.push_back(Slot(static_cast<int64_t>(s), first + i));
        in.sequence_of.push_back(static_cast<int32_t>(s));
        in.settled.push_back(first);
      }
    }
    in.positions.push_back(-1);  // padding
    for (auto* other : {&in.slots, &in.sequence_of, &in.settled}) other->push_back(0);
    in.x = random->Floats(static_cast<int64_t>(in.positions.size()) * kHidden, 2);
    return in;
  }
  void Pack(int64_t pass) const {
    std::byte* to = host_.data() + pass * input_bytes_;
    const PassInput& in = inputs_[pass];
    auto* numbers = reinterpret_cast<int32_t*>(to);
    for (const auto* array : {&in.positions, &in.slots, &in.sequence_of, &in.settled, &tables_}) {
      numbers = std::copy(array->begin(), array->end(), numbers);
    }
    auto* x = reinterpret_cast<uint16_t*>(to + x_at_);
    std::transform(in.x.begin(), in.x.end(), x, [](float v) { return ToBFloat16(v); });
  }

  KvBlocks Cache(int64_t layer) const {
    std::byte* data = caches_[layer].data();
    return {data,
            data + caches_[layer].bytes() / 2,
            kType,
            num_blocks_,
            c_.heads.num_kv_heads,
            c_.heads.head_dim,
            c_.format};
  }
  QkNormRopeArgs RopeArgs(const int32_t* positions, const int32_t* slots) const {
    QkNormRopeArgs args;
    args.heads = c_.heads;
    args.q_norm = args.k_norm = View(norm_, 1, c_.heads.head_dim);
    args.eps = 1e-6F;
    args.rope = rope_.as<float>();
    args.positions = positions;
    args.slots = slots;
    return args;
  }
  // Keys and values of the positions before the first pass.
  void FillContexts(int64_t layer) {
    std::vector<int32_t> positions, slots;
    for (size_t s = 0; s < c_.sequences.size(); ++s) {
      for (int32_t p = 0; p < c_.sequences[s].context; ++p) {
        positions.push_back(p);
        slots.push_back(Slot(static_cast<int64_t>(s), p));
      }
    }
    if (positions.empty()) return;
    const auto rows = static_cast<int64_t>(positions.size());
    const DeviceArray<int32_t> device_positions(positions), device_slots(slots);
    const DeviceBuffer qkv = Uniform(rows * c_.heads.qkv_width(), 2, 30 + layer);
    QkNormRopeWriteKv(View(qkv, rows, c_.heads.qkv_width()),
                      RopeArgs(device_positions.get(), device_slots.get()), Cache(layer), stream_);
    CUDA_CHECK(cudaStreamSynchronize(stream_));
  }

  AttentionRows Rows(bool settled) const {
    const auto* numbers = input_.as<int32_t>();
    AttentionRows rows;
    rows.positions = numbers;
    rows.sequence_of = numbers + 2 * rows_;
    rows.settled = settled ? numbers + 3 * rows_ : nullptr;
    rows.block_tables = numbers + 4 * rows_;
    rows.table_stride = table_stride_;
    rows.tiles = tiles_.as<AttentionTile>();
    rows.num_tiles = static_cast<int64_t>(division_.tiles.size());
    rows.lone_rows = lone_rows_.as<int32_t>();
    rows.num_lone_rows = static_cast<int64_t>(division_.lone_rows.size());
    return rows;
  }
  void Enqueue(bool settled) {
    const auto* numbers = input_.as<int32_t>();
    const AttentionRows rows = Rows(settled);
    TensorView x = View(input_, rows_, kHidden);
    x.data = input_.data() + x_at_;
    const TensorView qkv = View(qkv_, rows_, c_.heads.qkv_width());
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const TensorView out = View(out_[layer], rows_, c_.heads.q_width());
      Linear(x, View(w_qkv_[layer], qkv.cols, kHidden), {}, limits_, qkv, stream_);
      QkNormRopeWriteKv(qkv, RopeArgs(numbers, numbers + rows_), Cache(layer), stream_);
      Attention(qkv, c_.heads, 0.1F, rows, Cache(layer), plan_, workspace_.data(), out, stream_);
      x = View(hidden_, rows_, kHidden);
      Linear(out, View(w_out_[layer], kHidden, out.cols), {}, limits_, x, stream_);
    }
  }
  cudaGraphExec_t Capture(bool settled) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    Enqueue(settled);
    CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));
    return executable;
  }

  const ChainCase c_;
  const DeviceLimits limits_;
  cudaStream_t stream_ = nullptr;
  int64_t table_stride_ = 0, num_blocks_ = 0, rows_ = 0, x_at_ = 0, input_bytes_ = 0;
  std::vector<int32_t> tables_;
  std::vector<PassInput> inputs_;
  AttentionDivision division_;
  PinnedBuffer host_;
  DeviceBuffer tiles_, lone_rows_, input_, rope_, norm_, qkv_, hidden_, workspace_, history_;
  std::vector<DeviceBuffer> w_qkv_, w_out_, caches_, out_;
  AttentionPlan plan_;
};

TEST_F(CudaAttentionChainTest, WhatIsFetchedEarlyHasTheBitsOfWhatIsFetchedLate) {
  Random random(1);
  const HeadShape qwen{32, 4, 128}, smol{9, 3, 64};
  struct Batch {
    const char* name;
    std::vector<Sequence> sequences;
    bool tiles = false;
  };
  std::vector<Batch> batches = {
      {"one", {{1000}}},
      {"few", {{700}, {0}, {240}, {255}, {1}, {15}}},
      // Several rows of a sequence, across the ends of blocks and chunks.
      {"several rows each", {{250, 3}, {1010}, {16, 2}, {777}, {64, 3}, {0, 2}}},
      {"beside prompts", {{900}, {130, 24}, {500}, {3, 3}, {0, 40}, {1023}}, true},
      {"many", {}}};
  for (int32_t i = 0; i < 50; ++i) {
    batches.back().sequences.push_back({i * 13, i % 7 == 0 ? 2 : 1});
  }
  for (const HeadShape& heads : {qwen, smol}) {
    for (const KvFormat format : {KvFormat::kModel, KvFormat::kFloat8}) {
      for (const Batch& batch : batches) {
        SCOPED_TRACE(testing::Message() << batch.name << ", d " << heads.head_dim << ", float8 "
                                        << (format == KvFormat::kFloat8));
        Chain chain(&random, {heads, format, batch.sequences, batch.tiles}, limits_);
        const std::vector<uint8_t> late = chain.Run(false, false);
        for (int repetition = 0; repetition < 3; ++repetition) {
          ASSERT_TRUE(chain.Run(true, false) == late);
          ASSERT_TRUE(chain.Run(true, true) == late) << "as a graph";
        }
      }
    }
  }
}

}  // namespace
}  // namespace orrery::kernels::cuda
