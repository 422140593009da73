// The decoder of a tokenizer.json: from token texts back to text. ByteLevel, ByteFallback, Fuse,
// Strip, Replace, Metaspace and sequences of them; without one, tokens are joined by spaces.
//
// It is written as a stream, token by token, that gives out only what no later token can change; a
// whole decode is a stream that is finished at once, so that both agree by construction. What a
// stream holds back: the bytes of an unfinished character (ByteLevel); a run of <0xNN> tokens until
// it ends (ByteFallback makes all of a run U+FFFD when it is malformed anywhere); spaces that Strip
// may still take.
//
// A TokenDecoder is immutable and any thread may open streams; a stream belongs to one thread and
// may outlive its decoder.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "rollout/text/json_cursor.h"

namespace orrery::rollout {

// One step of the chain. Push gives what became final through `token`, as zero or more tokens.
class DecodeStage {
 public:
  virtual ~DecodeStage() = default;
  virtual void Push(std::string token, std::vector<std::string>* out) = 0;
  virtual void Finish(std::vector<std::string>* out) { (void)out; }
  virtual std::unique_ptr<DecodeStage> Fresh() const = 0;  // the same step, at its beginning
};

class TokenDecoder {
 public:
  class Stream {
   public:
    void Push(std::string_view token, std::string* out);
    void Finish(std::string* out);

   private:
    friend class TokenDecoder;
    void Run(size_t stage, std::vector<std::string> tokens, std::string* out);
    std::vector<std::unique_ptr<DecodeStage>> stages_;
  };

  static absl::StatusOr<TokenDecoder> FromJson(const JsonCursor& node);

  Stream Open() const;

 private:
  absl::Status Add(const JsonCursor& node, int depth);
  absl::Status AddReplace(const JsonCursor& node);
  absl::Status AddStrip(const JsonCursor& node);
  absl::Status AddMetaspace(const JsonCursor& node);

  std::vector<std::unique_ptr<DecodeStage>> stages_;
  bool fused_ = false;  // the stages so far give one long token in pieces
};

}  // namespace orrery::rollout
