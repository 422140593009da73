#include "rollout/text/decode_stages.h"

#include <algorithm>
#include <optional>

#include "rollout/text/byte_level.h"
#include "rollout/text/utf8.h"

namespace orrery::rollout {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

using Tokens = std::vector<std::string>;

class JoinWithSpaces final : public DecodeStage {
 public:
  void Push(std::string token, Tokens* out) override {
    out->push_back(first_ ? std::move(token) : " " + token);
    first_ = false;
  }
  std::unique_ptr<DecodeStage> Fresh() const override { return MakeJoinWithSpaces(); }

 private:
  bool first_ = true;
};

class ByteLevelStage final : public DecodeStage {
 public:
  void Push(std::string token, Tokens* out) override {
    // A token with a character outside the alphabet stands for itself, as a whole.
    std::optional<std::string> bytes = ByteLevelToBytes(token);
    pending_ += bytes ? *bytes : token;
    std::string finished;
    TakeFinishedUtf8(&pending_, &finished);
    if (!finished.empty()) out->push_back(std::move(finished));
  }
  void Finish(Tokens* out) override {
    if (!pending_.empty()) out->push_back(ReplaceInvalidUtf8(pending_));
    pending_.clear();
  }
  std::unique_ptr<DecodeStage> Fresh() const override { return MakeByteLevel(); }

 private:
  std::string pending_;
};

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The byte of a "<0xNN>" token.
std::optional<char> ByteOfToken(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  const int high = HexDigit(token[3]), low = HexDigit(token[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<char>(high * 16 + low);
}

class ByteFallbackStage final : public DecodeStage {
 public:
  void Push(std::string token, Tokens* out) override {
    if (const std::optional<char> byte = ByteOfToken(token)) {
      run_.push_back(*byte);
      return;
    }
    Finish(out);
    out->push_back(std::move(token));
  }
  void Finish(Tokens* out) override {
    if (run_.empty()) return;
    if (IsValidUtf8(run_)) {
      out->push_back(run_);
    } else {
      for (size_t i = 0; i < run_.size(); ++i) out->emplace_back(kReplacement);
    }
    run_.clear();
  }
  std::unique_ptr<DecodeStage> Fresh() const override { return MakeByteFallback(); }

 private:
  std::string run_;
};

class ReplaceStage final : public DecodeStage {
 public:
  ReplaceStage(std::shared_ptr<const Regex> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void Push(std::string token, Tokens* out) override {
    std::string text;
    for (const MatchRange& range : pattern_->Ranges(token, &scratch_)) {
      text += range.is_match ? content_ : token.substr(range.begin, range.end - range.begin);
    }
    out->push_back(std::move(text));
  }
  std::unique_ptr<DecodeStage> Fresh() const override { return MakeReplace(pattern_, content_); }

 private:
  std::shared_ptr<const Regex> pattern_;
  std::string content_;
  RegexScratch scratch_;
};

class FusedReplaceStage final : public DecodeStage {
 public:
  FusedReplaceStage(std::string literal, std::string content)
      : literal_(std::move(literal)), content_(std::move(content)) {}

  void Push(std::string token, Tokens* out) override {
    pending_ += token;
    std::string text;
    size_t done = 0;
    for (size_t at; (at = pending_.find(literal_, done)) != std::string::npos;) {
      text.append(pending_, done, at - done).append(content_);
      done = at + literal_.size();
    }
    const size_t held = HeldBack(std::string_view(pending_).substr(done));
    text.append(pending_, done, pending_.size() - done - held);
    pending_.erase(0, pending_.size() - held);
    if (!text.empty()) out->push_back(std::move(text));
  }
  void Finish(Tokens* out) override {
    if (!pending_.empty()) out->push_back(std::move(pending_));
    pending_.clear();
  }
  std::unique_ptr<DecodeStage> Fresh() const override {
    return MakeFusedReplace(literal_, content_);
  }

 private:
  // Length of the longest end of `text` with which the literal may begin.
  size_t HeldBack(std::string_view text) const {
    for (size_t n = std::min(text.size(), literal_.size() - 1); n > 0; --n) {
      if (literal_.starts_with(text.substr(text.size() - n))) return n;
    }
    return 0;
  }

  std::string literal_, content_;
  std::string pending_;
};

class StripStage final : public DecodeStage {
 public:
  StripStage(std::string content, size_t start, size_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}

  void Push(std::string token, Tokens* out) override {
    std::string_view text = token;
    for (size_t i = 0; i < start_ && text.starts_with(content_); ++i) {
      text.remove_prefix(content_.size());
    }
    for (size_t i = 0; i < stop_ && text.ends_with(content_); ++i) {
      text.remove_suffix(content_.size());
    }
    out->emplace_back(text);
  }
  std::unique_ptr<DecodeStage> Fresh() const override { return MakeStrip(content_, start_, stop_); }

 private:
  std::string content_;
  size_t start_, stop_;
};

class FusedStripStage final : public DecodeStage {
 public:
  FusedStripStage(std::string content, size_t start, size_t stop)
      : content_(std::move(content)), start_(start), stop_(stop), left_to_strip_(start) {}

  void Push(std::string token, Tokens* out) override {
    std::string_view text = token;
    while (left_to_strip_ > 0 && !text.empty()) {
      if (!text.starts_with(content_)) {
        left_to_strip_ = 0;
        break;
      }
      text.remove_prefix(content_.size());
      --left_to_strip_;
    }
    if (text.empty()) return;
    pending_ += text;
    size_t held = 0;
    std::string_view rest = pending_;
    for (size_t i = 0; i < stop_ && rest.ends_with(content_); ++i) {
      rest.remove_suffix(content_.size());
      held += content_.size();
    }
    if (!rest.empty()) out->emplace_back(rest);
    pending_.erase(0, pending_.size() - held);
  }
  std::unique_ptr<DecodeStage> Fresh() const override {
    return MakeFusedStrip(content_, start_, stop_);
  }
  // What is pending at the end is what Strip takes.

 private:
  std::string content_;
  size_t start_, stop_;
  size_t left_to_strip_;
  std::string pending_;
};

class MetaspaceStage final : public DecodeStage {
 public:
  MetaspaceStage(std::string replacement, bool drop_first, bool fused)
      : replacement_(std::move(replacement)), drop_first_(drop_first), fused_(fused) {}

  void Push(std::string token, Tokens* out) override {
    const std::string_view space = first_ && drop_first_ ? "" : " ";
    std::string text;
    for (size_t i = 0; i < token.size();) {
      if (std::string_view(token).substr(i).starts_with(replacement_)) {
        text += space;
        i += replacement_.size();
      } else {
        text.push_back(token[i++]);
      }
    }
    out->push_back(std::move(text));
    first_ = fused_;
  }
  std::unique_ptr<DecodeStage> Fresh() const override {
    return MakeMetaspace(replacement_, drop_first_, fused_);
  }

 private:
  std::string replacement_;
  bool drop_first_, fused_;
  bool first_ = true;
};

}  // namespace

std::unique_ptr<DecodeStage> MakeJoinWithSpaces() { return std::make_unique<JoinWithSpaces>(); }

std::unique_ptr<DecodeStage> MakeByteLevel() { return std::make_unique<ByteLevelStage>(); }

std::unique_ptr<DecodeStage> MakeByteFallback() { return std::make_unique<ByteFallbackStage>(); }

std::unique_ptr<DecodeStage> MakeReplace(std::shared_ptr<const Regex> pattern,
                                         std::string content) {
  return std::make_unique<ReplaceStage>(std::move(pattern), std::move(content));
}

std::unique_ptr<DecodeStage> MakeFusedReplace(std::string literal, std::string content) {
  return std::make_unique<FusedReplaceStage>(std::move(literal), std::move(content));
}

std::unique_ptr<DecodeStage> MakeStrip(std::string content, size_t start, size_t stop) {
  return std::make_unique<StripStage>(std::move(content), start, stop);
}

std::unique_ptr<DecodeStage> MakeFusedStrip(std::string content, size_t start, size_t stop) {
  return std::make_unique<FusedStripStage>(std::move(content), start, stop);
}

std::unique_ptr<DecodeStage> MakeMetaspace(std::string replacement, bool drop_first, bool fused) {
  return std::make_unique<MetaspaceStage>(std::move(replacement), drop_first, fused);
}

}  // namespace orrery::rollout
