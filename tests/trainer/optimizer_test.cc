// AdamW against its formula in double, its groups, clipping, threads and file.
#include "trainer/cpu/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "kernels/cpu/thread_pool.h"
#include "orchestrator/base/hash.h"
#include "tests/fakes/tiny_models.h"
#include "tests/trainer/model/temp_folder.h"

namespace orrery::trainer {
namespace {

constexpr double kEps = 0x1p-24;  // of a rounding to float32

class OptimizerTest : public testing::Test {
 protected:
  std::unique_ptr<model::WeightStore> store_ = fakes::LoadTiny("qwen2", kernels::DType::kFloat32);
  size_t size() const { return static_cast<size_t>(store_->layout().num_elements); }

  std::vector<float> Gradient(uint64_t seed) const {
    std::vector<float> out(size(), 0.0f);
    RandomStream random(seed);
    for (const model::Param& p : store_->layout().params) {
      for (int64_t i = 0; i < p.num_elements(); ++i) {
        out[p.offset + i] = static_cast<float>((random.Uniform() - 0.5) * 0.2);
      }
    }
    return out;
  }
};

// The formula, and how far float32 arithmetic may be from it.
struct Reference {
  explicit Reference(std::span<const float> start)
      : w(start.begin(), start.end()), m(w.size()), v(w.size()), size(w.size()), error(w.size()) {}

  void Step(std::span<const float> grads, const model::WeightLayout& layout, const AdamWOptions& o,
            double lr) {
    double norm = 0;
    for (const float g : grads) norm += static_cast<double>(g) * g;
    norm = std::sqrt(norm);
    const double scale =
        o.clip_grad_norm > 0 && norm > o.clip_grad_norm ? o.clip_grad_norm / (norm + 1e-6) : 1;
    ++steps;
    const double c1 = 1 - std::pow(o.beta1, steps), c2 = 1 - std::pow(o.beta2, steps);
    for (const model::Param& p : layout.params) {
      for (int64_t i = p.offset; i < p.offset + p.num_elements(); ++i) {
        const double g = grads[i] * scale;
        m[i] = o.beta1 * m[i] + (1 - o.beta1) * g;
        v[i] = o.beta2 * v[i] + (1 - o.beta2) * g * g;
        size[i] = o.beta1 * size[i] + (1 - o.beta1) * std::abs(g);
        if (p.decay) w[i] -= lr * o.weight_decay * w[i];
        const double below = std::sqrt(v[i] / c2) + o.epsilon;
        w[i] -= lr * (m[i] / c1) / below;
        // A few roundings of each operand; those of m are relative to the sum of |g|.
        error[i] += 4 * kEps * std::abs(w[i]) + lr * 16 * kEps * steps * (size[i] / c1) / below;
      }
    }
  }

  std::vector<double> w, m, v, size, error;
  int steps = 0;
};

TEST_F(OptimizerTest, StepsFollowTheFormula) {
  for (const double clip : {0.0, 0.5, 1e9}) {
    for (const double decay : {0.0, 0.1}) {
      AdamWOptions options;
      options.clip_grad_norm = clip;
      options.weight_decay = decay;
      AdamW adam(*store_, options);
      Reference reference(adam.master());
      for (int step = 1; step <= 6; ++step) {
        std::vector<float> grads = Gradient(static_cast<uint64_t>(step));
        const double lr = 0.01 / step;
        reference.Step(grads, store_->layout(), options, lr);
        const double norm = adam.GradNorm(grads);
        adam.Step(grads, norm, lr);
        EXPECT_EQ(adam.steps(), step);
      }
      for (size_t i = 0; i < size(); ++i) {
        ASSERT_NEAR(adam.master()[i], reference.w[i], reference.error[i])
            << i << " clip " << clip << " decay " << decay;
      }
    }
  }
}

TEST_F(OptimizerTest, DecayIsForMatricesAlone) {
  AdamWOptions options;
  options.weight_decay = 0.5;
  AdamW adam(*store_, options);
  const std::vector<float> before(adam.master().begin(), adam.master().end());
  std::vector<float> zero(size(), 0.0f);
  adam.Step(zero, 0, 0.1);
  for (const model::Param& p : store_->layout().params) {
    using enum model::ParamKind;
    const bool vector =
        p.kind == kInputNorm || p.kind == kPostNorm || p.kind == kFinalNorm || p.kind == kQkvBias;
    for (int64_t i = p.offset; i < p.offset + p.num_elements(); ++i) {
      ASSERT_NEAR(adam.master()[i], vector ? before[i] : before[i] * 0.95,
                  vector ? 0 : 4 * kEps * std::abs(before[i]));
    }
  }
}

TEST_F(OptimizerTest, NormIsTheDoubleSum) {
  const std::vector<float> grads = Gradient(3);
  double sum = 0;
  for (const float g : grads) sum += static_cast<double>(g) * g;
  const AdamW adam(*store_, {});
  EXPECT_NEAR(adam.GradNorm(grads), std::sqrt(sum), 1e-12 * std::sqrt(sum));
  std::vector<float> bad = grads;
  bad[store_->layout().params[2].offset] = std::nanf("");
  EXPECT_FALSE(std::isfinite(adam.GradNorm(bad)));
}

TEST_F(OptimizerTest, ThreadsChangeNothing) {
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 3}) {
    kernels::SetNumThreads(threads);
    AdamW adam(*store_, {});
    std::vector<float> grads = Gradient(5);
    adam.Step(grads, adam.GradNorm(grads), 0.01);
    results.emplace_back(adam.master().begin(), adam.master().end());
  }
  kernels::SetNumThreads(0);
  EXPECT_EQ(results[0], results[1]);
}

TEST_F(OptimizerTest, SavedAndLoadedItGoesOnBitwise) {
  const TempFolder folder;
  AdamW adam(*store_, {});
  std::vector<float> grads = Gradient(1);
  adam.Step(grads, adam.GradNorm(grads), 0.01);
  ASSERT_TRUE(adam.Save(folder.path()).ok());
  AdamW other(*store_, {});
  ASSERT_TRUE(other.Load(folder.path()).ok());
  for (AdamW* a : {&adam, &other}) {
    std::vector<float> next = Gradient(2);
    a->Step(next, a->GradNorm(next), 0.01);
  }
  EXPECT_EQ(other.steps(), 2);
  EXPECT_TRUE(std::equal(adam.master().begin(), adam.master().end(), other.master().begin()));
}

TEST_F(OptimizerTest, ADamagedFileIsAnErrorAndChangesNothing) {
  const TempFolder folder;
  AdamW adam(*store_, {});
  std::vector<float> grads = Gradient(1);
  adam.Step(grads, adam.GradNorm(grads), 0.01);
  ASSERT_TRUE(adam.Save(folder.path()).ok());
  const std::string whole = Slurp(folder / "optimizer.safetensors");
  AdamW fresh(*store_, {});
  const std::vector<float> before(fresh.master().begin(), fresh.master().end());
  const auto expect_error = [&](const std::string& content, const std::string& word) {
    folder.Write("optimizer.safetensors", content);
    const absl::Status status = fresh.Load(folder.path());
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find(word), absl::string_view::npos) << status;
    EXPECT_EQ(fresh.steps(), 0);
    EXPECT_TRUE(std::equal(before.begin(), before.end(), fresh.master().begin()));
  };
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  expect_error(whole.substr(0, whole.size() / 2), "optimizer.safetensors");
  expect_error(whole.substr(0, 5), "optimizer.safetensors");
  expect_error(replaced("\"moment2\"", "\"momentX\""), "moment2");
  expect_error(replaced("\"steps\"", "\"stepz\""), "steps");
  expect_error(replaced("\"1\"", "\"x\""), "steps");
  folder.Write("optimizer.safetensors", whole);
  const auto other = fakes::LoadTiny("llama", kernels::DType::kFloat32);
  AdamW of_another_model(*other, {});
  EXPECT_FALSE(of_another_model.Load(folder.path()).ok());
  EXPECT_FALSE(fresh.Load(folder / "nowhere").ok());
  EXPECT_TRUE(fresh.Load(folder.path()).ok());
}

}  // namespace
}  // namespace orrery::trainer
