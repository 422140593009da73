// Hashes: SHA-256 for identity of content on disk, and a 64-bit mix for seeds.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace orrery {

// Lower-case hexadecimal, 64 characters.
std::string Sha256(std::string_view data);

// One step of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64-bit words that mixes well.
constexpr uint64_t Mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The seed of anything random in a run: HashSeed({run_seed, sample_id, turn}). Order matters.
constexpr uint64_t HashSeed(std::initializer_list<uint64_t> parts) {
  uint64_t hash = 0x6f7272657279u;
  for (const uint64_t part : parts) hash = Mix64(hash ^ Mix64(part));
  return hash;
}

// A counter-based random stream: the n-th number is a function of (seed, n) alone.
class RandomStream {
 public:
  explicit RandomStream(uint64_t seed) : seed_(seed) {}
  uint64_t Next() { return Mix64(seed_ ^ Mix64(counter_++)); }
  // Uniform in [0, bound), exactly (rejection); bound > 0.
  uint64_t Below(uint64_t bound) {
    const uint64_t limit = bound * ((~uint64_t{0}) / bound);
    while (true) {
      const uint64_t x = Next();
      if (x < limit) return x % bound;
    }
  }
  // Uniform in [0, 1) on the grid of 2^-53.
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }

 private:
  uint64_t seed_;
  uint64_t counter_ = 0;
};

}  // namespace orrery
