// The sampler on a GPU: its distribution against exact probabilities, its sets against the CPU's
// definition, its log-probs against double, and that nothing depends on the rest of the batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "kernels/head/log_softmax.h"
#include "kernels/sampler/sampler_cuda.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/sampler_cases.h"

namespace orrery::kernels::cuda {
namespace {

// A row's request on the host.
struct Request : SamplerCase {
  uint64_t seed = 0, position = 0;
  bool active = true;
};

struct Drawn {
  std::vector<int32_t> tokens, finite;
  std::vector<float> logprobs, entropies;
};

SamplerRow ToRow(const Request& r, const int32_t* ids, const int32_t* banned) {
  SamplerRow row;
  row.temperature = r.params.temperature;
  row.top_p = r.params.top_p;
  row.min_p = r.params.min_p;
  row.repetition_penalty = r.params.repetition_penalty;
  row.presence_penalty = r.params.presence_penalty;
  row.top_k = static_cast<int32_t>(r.params.top_k);
  row.seed = r.seed;
  row.position = r.position;
  row.ids = ids;
  row.num_prompt_ids = static_cast<int32_t>(r.prompt.size());
  row.num_ids = static_cast<int32_t>(r.prompt.size() + r.generated.size());
  row.banned_ids = banned;
  row.num_banned_ids = static_cast<int32_t>(r.banned.size());
  row.active = r.active;
  return row;
}

Drawn Sample(const TensorView& logits, const std::vector<Request>& requests) {
  std::vector<int32_t> ids;
  for (const Request& r : requests) {
    for (const auto* part : {&r.prompt, &r.generated, &r.banned}) {
      ids.insert(ids.end(), part->begin(), part->end());
    }
  }
  const DeviceArray<int32_t> device_ids(ids);
  std::vector<SamplerRow> rows;
  const int32_t* at = device_ids.get();
  for (const Request& r : requests) {
    const int32_t* banned = at + r.prompt.size() + r.generated.size();
    rows.push_back(ToRow(r, at, banned));
    at = banned + r.banned.size();
  }
  const int64_t n = logits.rows;
  const DeviceArray<SamplerRow> device_rows(rows);
  const DeviceArray<uint8_t> workspace(SamplerWorkspaceBytes(n, logits.cols));
  const DeviceArray<int32_t> tokens(n), finite(n);
  const DeviceArray<float> logprobs(n), entropies(n);
  SampleTokens(logits, device_rows.get(), workspace.get(),
               {tokens.get(), logprobs.get(), entropies.get(), finite.get()}, nullptr);
  return {tokens.Download(), finite.Download(), logprobs.Download(), entropies.Download()};
}

// The same logits in `rows` rows, without copying them.
TensorView Repeated(const DeviceMatrix& row, int64_t rows) {
  TensorView view = row.view();
  view.rows = rows;
  view.row_stride = 0;
  return view;
}

// `rows` draws of one request at successive positions.
std::vector<Request> AtPositions(const Request& request, int64_t rows, uint64_t first) {
  std::vector<Request> requests(rows, request);
  for (int64_t i = 0; i < rows; ++i) requests[i].position = first + static_cast<uint64_t>(i);
  return requests;
}

void ExpectDrawsFollow(const std::vector<float>& logits, DType dtype, const Request& request,
                       int64_t draws) {
  constexpr int64_t kBatch = 2048;
  const DeviceMatrix row(dtype, logits, 1, static_cast<int64_t>(logits.size()));
  std::map<int32_t, int64_t> counts;
  for (int64_t first = 0; first < draws; first += kBatch) {
    const auto requests = AtPositions(request, kBatch, static_cast<uint64_t>(first));
    for (const int32_t id : Sample(Repeated(row, kBatch), requests).tokens) ++counts[id];
  }
  ExpectCountsFollow(Exact(logits, request), counts, (draws + kBatch - 1) / kBatch * kBatch);
}

// One request of every kind, each with a seed of its own.
std::vector<Request> AllKinds() {
  std::vector<Request> requests;
  for (const SamplerCase& c : SamplerCases()) {
    requests.push_back({c});
    requests.back().seed = 76 + requests.size();
  }
  return requests;
}

class CudaSamplerTest : public CudaTest {};

TEST_F(CudaSamplerTest, DrawsFollowTheExactProbabilities) {
  Random random(1);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t v : {40, 1500}) {
      const std::vector<float> logits = Rounded(dtype, random.Floats(v, 3));
      const std::vector<Request> cases = AllKinds();
      for (size_t i = 0; i < cases.size(); ++i) {
        SCOPED_TRACE(testing::Message() << "case " << i << " of " << v);
        ExpectDrawsFollow(logits, dtype, cases[i], 100000);
      }
    }
  }
}

// The number is the CPU sampler's, and ids are walked in the same order: the same token but where
// the number falls within rounding of a boundary between two.
TEST_F(CudaSamplerTest, DrawsWhatTheCpuDraws) {
  Random random(2);
  constexpr int64_t kDraws = 100;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t v : {41, 1024, 4097, 49152}) {
      const std::vector<float> logits = Rounded(dtype, random.Floats(v, 6));
      const DeviceMatrix row(dtype, logits, 1, v);
      int64_t differ = 0;
      std::vector<float> scratch;
      for (const Request& request : AllKinds()) {
        const auto requests = AtPositions(request, kDraws, 1000);
        const Drawn drawn = Sample(Repeated(row, kDraws), requests);
        for (int64_t i = 0; i < kDraws; ++i) {
          const Request& r = requests[i];
          const SampleResult expected = SampleToken(
              {logits, r.prompt, r.generated, r.banned, r.seed, r.position}, r.params, &scratch);
          differ += drawn.tokens[i] != expected.token_id;
        }
      }
      // A boundary moves by some roundings of the whole sum; every draw may meet v boundaries.
      const double share = static_cast<double>(v) * 8 * kFloatEps;
      EXPECT_LE(static_cast<double>(differ), 3 + 10 * kDraws * share) << v;
    }
  }
}

// Falling: the largest are neighbours, so that maxima of parts of the row say little of the others.
void ExpectDefinedSets(bool falling) {
  Random random(3);
  constexpr int64_t kDraws = 2048;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t v : {1000, 49152, 151936}) {
      std::vector<float> logits = Rounded(dtype, random.Floats(v, 4));  // bfloat16: many ties
      if (falling) std::sort(logits.rbegin(), logits.rend());
      const DeviceMatrix row(dtype, logits, 1, v);
      for (const SamplerParams& params :
           {SamplerParams{1, 10, 1, 0}, SamplerParams{1, 500, 1, 0}, SamplerParams{0.05f, 0, 0.9f},
            SamplerParams{1, 0, 0.3f}, SamplerParams{0.3f, 0, 1, 0.7f},
            SamplerParams{1, 100, 0.5f, 0.2f}, SamplerParams{1, 700, 0.95f},
            SamplerParams{1, 448, 0.9f}, SamplerParams{1, 449, 0.9f}, SamplerParams{1, 74, 1},
            SamplerParams{1, 75, 1}, SamplerParams{0.1f, 0, 0.95f, 0.05f},
            SamplerParams{1, 1, 1, 0}, SamplerParams{1, 0, 1e-6f, 0}}) {
        SCOPED_TRACE(testing::Message() << v << ": k " << params.top_k << " p " << params.top_p
                                        << " min " << params.min_p);
        Request request;
        request.params = params;
        const std::vector<double> p = Exact(logits, request);
        std::set<int32_t> expected, got;
        double rarest = 1;
        for (int64_t i = 0; i < v; ++i) {
          if (p[i] > 0) expected.insert(static_cast<int32_t>(i)), rarest = std::min(rarest, p[i]);
        }
        for (uint64_t first = 0; first < 4 * kDraws; first += kDraws) {
          const Drawn drawn = Sample(Repeated(row, kDraws), AtPositions(request, kDraws, first));
          got.insert(drawn.tokens.begin(), drawn.tokens.end());
        }
        for (const int32_t id : got) EXPECT_TRUE(expected.count(id)) << id;
        if (rarest * 4 * kDraws > 40) {  // missed with probability e^-40
          EXPECT_EQ(got.size(), expected.size());
        }
      }
    }
  }
}

TEST_F(CudaSamplerTest, FiltersKeepTheDefinedSets) { ExpectDefinedSets(false); }

TEST_F(CudaSamplerTest, FiltersKeepTheDefinedSetsOfFallingLogits) { ExpectDefinedSets(true); }

TEST_F(CudaSamplerTest, EqualLogitsAreKeptByTheLowestIds) {
  constexpr int64_t kV = 9000, kDraws = 2048;
  const std::vector<float> logits(kV, 1.5f);
  const DeviceMatrix row(DType::kBFloat16, logits, 1, kV);
  for (const auto& [params, kept] : std::vector<std::pair<SamplerParams, int64_t>>{
           {{1, 5000, 1}, 5000}, {{1, 0, 0.5f}, 4500}, {{1, 6000, 0.5f}, 3000}, {{1, 3}, 3}}) {
    std::vector<int64_t> counts(10);
    int32_t largest = 0;
    Request request;
    request.params = params;
    for (uint64_t first = 0; first < 8 * kDraws; first += kDraws) {
      for (const int32_t id :
           Sample(Repeated(row, kDraws), AtPositions(request, kDraws, first)).tokens) {
        ASSERT_LT(id, kept);
        largest = std::max(largest, id);
      }
    }
    // 16,384 uniform draws leave no gap of a hundredth at the end (probability e^-160).
    EXPECT_GE(largest, kept - 1 - kept / 100);
  }
}

TEST_F(CudaSamplerTest, LogprobsAndEntropiesAreTheUnfilteredTemperedOnes) {
  Random random(4);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t v : {1, 5, 1000, 1025, 49152, 151936, 262144}) {
      for (const float temperature : {1.0f, 0.7f, 2.0f, 0.0f}) {
        const std::vector<float> logits = Rounded(dtype, random.Floats(v, 10));
        const DeviceMatrix row(dtype, logits, 1, v, v % 2);
        std::vector<Request> requests(64);
        for (size_t i = 0; i < requests.size(); ++i) {
          requests[i].params.temperature = temperature;
          if (i % 4 == 1) requests[i].params.top_k = 50;
          if (i % 4 == 2) requests[i].params.top_p = 0.9f;
          if (i % 4 == 3) requests[i].params.repetition_penalty = 1.3f, requests[i].prompt = {0};
          requests[i].seed = i;
        }
        const Drawn drawn = Sample(Repeated(row, 64), requests);
        const double inverse = temperature > 0 ? 1.0 / temperature : 1;
        std::vector<double> expected(v);
        const double entropy = LogSoftmaxReference(logits.data(), v, inverse, expected.data());
        // Differences of logits up to 20 / T are rounded three times, sums of a piece 37 times.
        const double size = 20 * inverse;
        for (size_t i = 0; i < requests.size(); ++i) {
          EXPECT_EQ(drawn.finite[i], 1);
          ASSERT_GE(drawn.tokens[i], 0);
          ASSERT_LT(drawn.tokens[i], v);
          EXPECT_NEAR(drawn.logprobs[i], expected[drawn.tokens[i]], (4 * size + 48) * kFloatEps);
          EXPECT_NEAR(drawn.entropies[i], entropy, (4 * size + 96) * (1 + entropy) * kFloatEps);
        }
      }
    }
  }
}

TEST_F(CudaSamplerTest, ARowDoesNotDependOnTheBatch) {
  Random random(5);
  constexpr int64_t kV = 4104, kRows = 130;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const std::vector<float> logits = Rounded(dtype, random.Floats(kRows * kV, 5));
    std::vector<Request> requests;
    const std::vector<Request> kinds = AllKinds();
    for (int64_t i = 0; i < kRows; ++i) {
      requests.push_back(kinds[i % kinds.size()]);
      requests.back().position = static_cast<uint64_t>(i * 31);
      requests.back().active = i % 13 != 5;
    }
    const DeviceMatrix whole(dtype, logits, kRows, kV);
    const Drawn batch = Sample(whole.view(), requests);
    const Drawn again = Sample(whole.view(), requests);
    for (int64_t i = 0; i < kRows; ++i) {
      if (!requests[i].active) {
        EXPECT_EQ(batch.tokens[i], -1) << "written";  // as it was allocated
        continue;
      }
      // Alone, at another place, and read one by one instead of in vectors.
      const std::vector<float> own(logits.begin() + i * kV, logits.begin() + (i + 1) * kV);
      const DeviceMatrix row(dtype, own, 1, kV, 1, 1);
      const Drawn alone = Sample(row.view(), {requests[i]});
      for (const Drawn* other : {&again, &alone}) {
        const int64_t at = other == &again ? i : 0;
        EXPECT_EQ(batch.tokens[i], other->tokens[at]) << i;
        EXPECT_EQ(batch.logprobs[i], other->logprobs[at]) << i;
        EXPECT_EQ(batch.entropies[i], other->entropies[at]) << i;
      }
    }
  }
}

TEST_F(CudaSamplerTest, GreedyTakesTheLargestTiesToTheLowestId) {
  std::vector<float> logits(3000, -1.0f);
  logits[1500] = logits[1501] = logits[2900] = 5;
  const DeviceMatrix row(DType::kBFloat16, logits, 1, 3000);
  std::vector<Request> requests(5);
  for (Request& r : requests) r.params.temperature = 0;
  requests[1].banned = {1500, 5000, -3};
  requests[2].params.repetition_penalty = 3;
  requests[2].generated = {1500, 1501, 1501};
  requests[3].params.top_p = 0.1f;
  requests[4].params.presence_penalty = 7;
  requests[4].prompt = {1501};
  requests[4].generated = {1500};
  EXPECT_EQ(Sample(Repeated(row, 5), requests).tokens,
            (std::vector<int32_t>{1500, 1501, 2900, 1500, 1501}));
}

TEST_F(CudaSamplerTest, NothingIsDrawnFromWhatIsNotFinite) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (const int64_t place : {0, 1023, 1024, 2999}) {
      std::vector<float> logits(3000, 1.0f);
      logits[place] = bad;
      const DeviceMatrix row(DType::kFloat32, logits, 1, 3000);
      std::vector<Request> requests(4);
      requests[1].params.temperature = 0;
      requests[2].params.top_k = 5;
      requests[3].banned = {7};
      EXPECT_EQ(Sample(Repeated(row, 4), requests).finite, std::vector<int32_t>(4, 0)) << bad;
    }
  }
}

TEST_F(CudaSamplerTest, ImpossibleIdsAreNeverDrawn) {
  std::vector<float> logits(5000, -500.0f);
  logits[700] = 10;
  logits[3000] = 9;
  const DeviceMatrix row(DType::kFloat32, logits, 1, 5000);
  for (Request request : AllKinds()) {
    if (request.params.top_p < 1 && request.params.top_p <= 0.8f) continue;  // keeps one of them
    for (const int32_t id : Sample(Repeated(row, 2048), AtPositions(request, 2048, 5)).tokens) {
      ASSERT_TRUE(id == 700 || id == 3000) << id;
    }
  }
}

}  // namespace
}  // namespace orrery::kernels::cuda
