// The steps that a TokenDecoder is made of. Those with `Fused` in their name stand behind Fuse (or
// ByteLevel), where there is one token that arrives in pieces.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rollout/text/regex.h"
#include "rollout/text/token_decoder.h"

namespace orrery::rollout {

std::unique_ptr<DecodeStage> MakeJoinWithSpaces();  // what no decoder at all means
std::unique_ptr<DecodeStage> MakeByteLevel();
std::unique_ptr<DecodeStage> MakeByteFallback();
std::unique_ptr<DecodeStage> MakeReplace(std::shared_ptr<const Regex> pattern, std::string content);
std::unique_ptr<DecodeStage> MakeFusedReplace(std::string literal, std::string content);
// Takes up to `start` and `stop` times `content` (one character) from the two ends.
std::unique_ptr<DecodeStage> MakeStrip(std::string content, size_t start, size_t stop);
std::unique_ptr<DecodeStage> MakeFusedStrip(std::string content, size_t start, size_t stop);
// Replacement characters become spaces; those of the first token vanish where drop_first.
std::unique_ptr<DecodeStage> MakeMetaspace(std::string replacement, bool drop_first, bool fused);

}  // namespace orrery::rollout
