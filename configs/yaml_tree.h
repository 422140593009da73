// YAML text as a tree of nodes that know their place, before anybody knows what the keys mean.
//
// Aliases are copies here, so a tree owns all of itself and can be edited; what they may multiply a
// file to is bounded. Scalars keep their text: nothing is turned into a number or a truth value, so
// that none of YAML 1.1's surprises (no, 010, 1e-6, 12:30) happen. Values; no thread rules.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace orrery::configs {

// Line and column count from 1; line 0: the source has no lines (an argument of the command line).
struct Place {
  std::string source;
  int line = 0;
  int column = 0;

  std::string Text() const;  // "run.yaml:3:7"
};

struct YamlNode {
  enum class Kind { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  bool quoted = false;          // scalar: written in quotes or as a block
  std::string tag;              // an explicit one, else empty
  std::string text;             // scalar
  std::vector<YamlNode> items;  // list; map: the values, in order
  std::vector<YamlNode> keys;   // map: the key of each item; keys may repeat
  Place place;

  // The first value under `key`, or null.
  const YamlNode* Find(std::string_view key) const;
  YamlNode* Find(std::string_view key);
  // For an error: 'text' or "a list", shortened.
  std::string Describe() const;
};

// One document; the error of a text that is none names its place and the fix. An empty text is
// kNull.
absl::StatusOr<YamlNode> ParseYaml(std::string_view text, const std::string& source);

// Puts the value of "a.b.0.c=VALUE" into the tree, VALUE being YAML. Makes maps on the way where
// there are none; a list's entries must exist.
absl::Status ApplyOverride(const std::string& argument, YamlNode& root);

}  // namespace orrery::configs
