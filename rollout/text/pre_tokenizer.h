// The pre-tokenizer of a tokenizer.json: cuts a text into words, inside which BPE merges. Split
// (string or regular expression; the five behaviours, inverted or not), Digits, ByteLevel,
// Metaspace and sequences of them.
//
// ByteLevel changes the alphabet to one character a byte; here the bytes stay as they are and
// byte_level() says that the words are to be read so. It must therefore come last.
//
// Immutable; any thread may call, each with its own scratch.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "rollout/text/json_cursor.h"
#include "rollout/text/regex.h"

namespace orrery::rollout {

class PreTokenizer {
 public:
  using WordSink = absl::FunctionRef<void(std::string_view)>;

  // A null gives one that takes each piece as one word.
  static absl::StatusOr<PreTokenizer> FromJson(const JsonCursor& node);

  bool byte_level() const { return byte_level_; }

  // Calls sink for each word of `piece`, in order; never with an empty one. at_start: the piece is
  // at the very beginning of the text that is encoded (Metaspace's "first").
  // REQUIRES: piece is valid UTF-8.
  void Split(std::string_view piece, bool at_start, RegexScratch* scratch, WordSink sink) const;

 private:
  enum class Behavior {
    kRemoved,
    kIsolated,
    kMergedWithPrevious,
    kMergedWithNext,
    kContiguous,
  };
  struct SplitStage {
    Regex regex;
    Behavior behavior;
    bool invert;
  };
  struct PrefixSpaceStage {};  // ByteLevel's add_prefix_space
  struct MetaspaceStage {
    std::string replacement;
    int prepend;  // 0 first, 1 never, 2 always
  };
  using Stage = std::variant<SplitStage, PrefixSpaceStage, MetaspaceStage>;

  struct Context {
    RegexScratch* scratch;
    WordSink sink;
  };

  absl::Status Add(const JsonCursor& node, int depth);
  absl::Status AddSplit(const JsonCursor& node);
  absl::Status AddDigits(const JsonCursor& node);
  absl::Status AddByteLevel(const JsonCursor& node);
  absl::Status AddMetaspace(const JsonCursor& node);

  void Run(size_t stage, std::string_view piece, bool at_start, const Context& context) const;
  void RunStage(const SplitStage& split, size_t next, std::string_view piece, bool at_start,
                const Context& context) const;
  void RunStage(const PrefixSpaceStage&, size_t next, std::string_view piece, bool at_start,
                const Context& context) const;
  void RunStage(const MetaspaceStage& metaspace, size_t next, std::string_view piece, bool at_start,
                const Context& context) const;
  void RunIsolated(const Regex& regex, size_t next, std::string_view piece, bool at_start,
                   const Context& context) const;

  static std::vector<MatchRange> Group(const std::vector<MatchRange>& ranges, Behavior behavior);

  std::vector<Stage> stages_;
  bool byte_level_ = false;
};

}  // namespace orrery::rollout
