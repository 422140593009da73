// Reads the string parameters of one reward: typed, with defaults and ranges. The first mistake is
// kept and returned by status(), which also refuses parameters that nobody asked for; so a factory
// reads all it knows and checks once.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace orrery::rewards {

class Parameters {
 public:
  // Borrows `values`, which must outlive the object. `owner` is the name shown in messages.
  Parameters(std::string_view owner, const std::map<std::string, std::string>& values)
      : owner_(owner), values_(values) {}

  std::string String(std::string_view key, std::string_view fallback);
  std::string Required(std::string_view key);
  // One of `choices`, the first being the default.
  std::string Choice(std::string_view key, const std::vector<std::string_view>& choices);
  bool Flag(std::string_view key, bool fallback);
  int64_t Integer(std::string_view key, int64_t fallback, int64_t low, int64_t high);
  double Number(std::string_view key, double fallback, double low, double high);

  void Fail(absl::Status error);
  absl::Status status() const;

 private:
  const std::string* Find(std::string_view key);

  std::string owner_;
  const std::map<std::string, std::string>& values_;
  std::set<std::string, std::less<>> known_;
  absl::Status error_;
};

// The candidate with the smallest edit distance to `name`; empty where nothing is near.
std::string_view Nearest(std::string_view name, const std::vector<std::string_view>& candidates);

// ", did you mean X?" or nothing.
std::string DidYouMean(std::string_view name, const std::vector<std::string_view>& candidates);

}  // namespace orrery::rewards
