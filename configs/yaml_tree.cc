#include "configs/yaml_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <sstream>

#include "orchestrator/base/status.h"
#include "orchestrator/base/utf8.h"

namespace orrery::configs {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;
// What a file may grow to when its aliases are written out: nodes, and bytes of text.
constexpr size_t kMaxNodes = 20000;
constexpr size_t kMaxTextBytes = 4 << 20;

// Leaves the parser from within a callback; caught in ParseYaml.
struct TreeError {
  YAML::Mark mark;
  std::string what;
};

// Turns the parser's events into a YamlNode. Containers under construction are on a stack.
class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(std::string source) : source_(std::move(source)) {}

  YamlNode TakeRoot() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Finish(NewNode(YamlNode::Kind::kNull, mark), anchor, mark);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) throw TreeError{mark, "this alias stands inside its own value"};
    Count(found->second, mark);
    Attach(found->second, mark);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    YamlNode node = NewNode(YamlNode::Kind::kScalar, mark);
    node.quoted = tag == "!";
    node.tag = ExplicitTag(tag);
    node.text = value;
    CountOne(value.size(), mark);
    Finish(std::move(node), anchor, mark);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open(YamlNode::Kind::kList, mark, tag, anchor);
  }
  void OnSequenceEnd() override { Close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Open(YamlNode::Kind::kMap, mark, tag, anchor);
  }
  void OnMapEnd() override { Close(); }

 private:
  struct OpenNode {
    YamlNode node;
    YAML::anchor_t anchor;
    YAML::Mark mark;
    std::optional<YamlNode> key;  // map: read, its value not yet
  };

  static std::string ExplicitTag(const std::string& tag) {
    return tag == "?" || tag == "!" ? "" : tag;
  }

  YamlNode NewNode(YamlNode::Kind kind, const YAML::Mark& mark) const {
    YamlNode node;
    node.kind = kind;
    node.place = {source_, mark.line + 1, mark.column + 1};
    return node;
  }

  void Open(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag,
            YAML::anchor_t anchor) {
    CountOne(0, mark);
    OpenNode open{NewNode(kind, mark), anchor, mark, std::nullopt};
    open.node.tag = ExplicitTag(tag);
    stack_.push_back(std::move(open));
  }

  void Close() {
    OpenNode open = std::move(stack_.back());
    stack_.pop_back();
    Finish(std::move(open.node), open.anchor, open.mark);
  }

  void Finish(YamlNode node, YAML::anchor_t anchor, const YAML::Mark& mark) {
    if (anchor != YAML::NullAnchor) anchors_[anchor] = node;
    Attach(std::move(node), mark);
  }

  void Attach(YamlNode node, const YAML::Mark& mark) {
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    OpenNode& parent = stack_.back();
    if (parent.node.kind == YamlNode::Kind::kList) {
      parent.node.items.push_back(std::move(node));
    } else if (parent.key) {
      parent.node.keys.push_back(*std::move(parent.key));
      parent.node.items.push_back(std::move(node));
      parent.key.reset();
    } else {
      if (node.kind != YamlNode::Kind::kScalar) {
        throw TreeError{mark, "a key must be a word, this one is " + node.Describe() +
                                  "; put text that begins with [, {, * or ~ in quotes"};
      }
      parent.key = std::move(node);
    }
  }

  void CountOne(size_t text_bytes, const YAML::Mark& mark) {
    num_nodes_ += 1;
    num_bytes_ += text_bytes;
    if (num_nodes_ > kMaxNodes || num_bytes_ > kMaxTextBytes) {
      throw TreeError{mark, fmt::format("with its aliases written out the file has more than {} "
                                        "values or {} bytes; use fewer aliases",
                                        kMaxNodes, kMaxTextBytes)};
    }
  }

  void Count(const YamlNode& node, const YAML::Mark& mark) {
    CountOne(node.text.size(), mark);
    for (const YamlNode& item : node.items) Count(item, mark);
    for (const YamlNode& key : node.keys) Count(key, mark);
  }

  const std::string source_;
  YamlNode root_;
  std::vector<OpenNode> stack_;
  std::map<YAML::anchor_t, YamlNode> anchors_;  // complete ones only
  size_t num_nodes_ = 0;
  size_t num_bytes_ = 0;
};

Place PlaceOfOffset(std::string_view text, size_t offset, const std::string& source) {
  const std::string_view before = text.substr(0, offset);
  const size_t newline = before.rfind('\n');
  const size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
  return {source, static_cast<int>(std::count(before.begin(), before.end(), '\n')) + 1,
          static_cast<int>(offset - line_start) + 1};
}

// The parser takes byte 4 for the end of the file and guesses UTF-16: such texts never reach it.
absl::Status CheckBytes(std::string_view text, const std::string& source) {
  if (text.size() > kMaxFileBytes) {
    return InvalidInput("{}: {} bytes are too many for a configuration (at most {})", source,
                        text.size(), kMaxFileBytes);
  }
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) {
    return InvalidInput("{}: the file is UTF-16; save it as UTF-8", source);
  }
  if (const size_t bad = FindInvalidUtf8(text); bad != std::string_view::npos) {
    return InvalidInput("{}: byte 0x{:02x} is not UTF-8; save the file as UTF-8",
                        PlaceOfOffset(text, bad, source).Text(),
                        static_cast<unsigned char>(text[bad]));
  }
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if ((c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7f) {
      return InvalidInput("{}: control character 0x{:02x}; remove it or write \"\\x{:02x}\"",
                          PlaceOfOffset(text, i, source).Text(), c, c);
    }
  }
  return absl::OkStatus();
}

// YAML indents with spaces alone. The parser's own words for a tab do not say so.
std::optional<Place> FindTabIndent(std::string_view text, int last_line,
                                   const std::string& source) {
  int line = 1;
  size_t start = 0;
  while (start < text.size() && line <= last_line) {
    const size_t first = text.find_first_not_of(' ', start);
    if (first != std::string_view::npos && text[first] == '\t') {
      return PlaceOfOffset(text, first, source);
    }
    const size_t newline = text.find('\n', start);
    if (newline == std::string_view::npos) break;
    start = newline + 1;
    ++line;
  }
  return std::nullopt;
}

absl::Status SyntaxError(std::string_view text, const YAML::Mark& mark, const std::string& what,
                         const std::string& source) {
  const int line = mark.is_null() ? 1 : mark.line + 1;
  if (const auto tab = FindTabIndent(text, line, source)) {
    return InvalidInput("{}: the line is indented with a tab; YAML takes spaces", tab->Text());
  }
  const Place place{source, line, mark.is_null() ? 1 : mark.column + 1};
  return InvalidInput("{}: not YAML: {}", place.Text(), what);
}

absl::StatusOr<YamlNode> ParseChecked(std::string_view text, const std::string& source) {
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    TreeBuilder first(source);
    if (!parser.HandleNextDocument(first)) return YamlNode{.place = {source, 1, 1}};
    YamlNode root = first.TakeRoot();
    TreeBuilder second(source);
    if (parser.HandleNextDocument(second)) {
      return InvalidInput(
          "{}: a second document begins here; one file is one experiment, so remove the --- line",
          second.TakeRoot().place.Text());
    }
    return root;
  } catch (const TreeError& error) {
    return InvalidInput("{}: {}", Place{source, error.mark.line + 1, error.mark.column + 1}.Text(),
                        error.what);
  } catch (const YAML::Exception& error) {
    return SyntaxError(text, error.mark, error.msg, source);
  } catch (const std::exception& error) {
    return InvalidInput("{}: not YAML: {}", source, error.what());
  }
}

std::vector<std::string> SplitPath(std::string_view path) {
  std::vector<std::string> parts;
  while (true) {
    const size_t dot = path.find('.');
    parts.emplace_back(path.substr(0, dot));
    if (dot == std::string_view::npos) return parts;
    path.remove_prefix(dot + 1);
  }
}

// The entry of a list that a part of an override's path names.
absl::StatusOr<YamlNode*> ListEntry(YamlNode& list, const std::string& part,
                                    const std::string& where) {
  size_t index = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
  if (error != std::errc() || end != part.data() + part.size()) {
    return InvalidInput("{}: '{}' should be the number of a list entry, 0 to {}", where, part,
                        list.items.size() - 1);
  }
  if (index >= list.items.size()) {
    return InvalidInput("{}: the list has {} entries, there is no entry {}; set the whole list",
                        where, list.items.size(), part);
  }
  return &list.items[index];
}

YamlNode* MapEntry(YamlNode& map, const std::string& key, const std::string& where) {
  map.kind = YamlNode::Kind::kMap;
  if (YamlNode* found = map.Find(key)) return found;
  YamlNode key_node;
  key_node.kind = YamlNode::Kind::kScalar;
  key_node.text = key;
  key_node.place = {where, 0, 0};
  map.keys.push_back(std::move(key_node));
  return &map.items.emplace_back(YamlNode{.place = {where, 0, 0}});
}

// Values of an override report the argument as their place.
void SetSource(YamlNode& node, const std::string& where) {
  node.place = {where, 0, 0};
  for (YamlNode& item : node.items) SetSource(item, where);
  for (YamlNode& key : node.keys) SetSource(key, where);
}

absl::StatusOr<YamlNode*> Descend(YamlNode& node, const std::string& part,
                                  const std::string& where) {
  if (part.empty()) return InvalidInput("{}: the key has an empty part; write --set a.b=c", where);
  if (node.kind == YamlNode::Kind::kList) return ListEntry(node, part, where);
  if (node.kind == YamlNode::Kind::kScalar) {
    return InvalidInput("{}: '{}' stands below {} ({}), which is not a section", where, part,
                        node.Describe(), node.place.Text());
  }
  return MapEntry(node, part, where);
}

}  // namespace

std::string Place::Text() const {
  return line == 0 ? source : fmt::format("{}:{}:{}", source, line, column);
}

const YamlNode* YamlNode::Find(std::string_view key) const {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].text == key) return &items[i];
  }
  return nullptr;
}

YamlNode* YamlNode::Find(std::string_view key) {
  return const_cast<YamlNode*>(std::as_const(*this).Find(key));
}

std::string YamlNode::Describe() const {
  switch (kind) {
    case Kind::kNull:
      return "nothing";
    case Kind::kList:
      return "a list";
    case Kind::kMap:
      return "a map";
    case Kind::kScalar:
      return fmt::format("'{}'", ShortenUtf8(text, 60));
  }
  return "";
}

absl::StatusOr<YamlNode> ParseYaml(std::string_view text, const std::string& source) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  RETURN_IF_ERROR(CheckBytes(text, source));
  return ParseChecked(text, source);
}

absl::Status ApplyOverride(const std::string& argument, YamlNode& root) {
  const std::string where = "--set " + ShortenUtf8(argument, 100);
  const size_t equals = argument.find('=');
  if (equals == std::string::npos) {
    return InvalidInput("{}: there is no '='; write --set key=value", where);
  }
  const std::string text = argument.substr(equals + 1);
  ASSIGN_OR_RETURN(YamlNode value, ParseYaml(text, where));
  if (text.empty()) {  // --set data.preset= means the empty text
    value.kind = YamlNode::Kind::kScalar;
    value.quoted = true;
  }
  SetSource(value, where);
  YamlNode* node = &root;
  for (const std::string& part : SplitPath(std::string_view(argument).substr(0, equals))) {
    ASSIGN_OR_RETURN(node, Descend(*node, part, where));
  }
  *node = std::move(value);
  return absl::OkStatus();
}

}  // namespace orrery::configs
