#include "rewards/math_symbols.h"

#include <algorithm>
#include <array>
#include <utility>

namespace orrery::rewards {
namespace {

using Entry = std::pair<std::string_view, std::string_view>;

// Unicode to LaTeX or ASCII. Names end in a space so that they do not run into a following letter.
constexpr auto kUnicode = std::to_array<Entry>({
    {"−", "-"},
    {"–", "-"},
    {"‐", "-"},
    {"‑", "-"},
    {"×", "*"},
    {"⋅", "*"},
    {"·", "*"},
    {"∙", "*"},
    {"∗", "*"},
    {"÷", "/"},
    {"⁄", "/"},
    {"∕", "/"},
    {"π", "\\pi "},
    {"∞", "\\infty "},
    {"≤", "\\le "},
    {"≥", "\\ge "},
    {"≠", "\\ne "},
    {"±", "\\pm "},
    {"∓", "\\mp "},
    {"°", "^\\circ "},
    {"²", "^{2}"},
    {"³", "^{3}"},
    {"⁴", "^{4}"},
    {"½", "\\frac{1}{2}"},
    {"¼", "\\frac{1}{4}"},
    {"¾", "\\frac{3}{4}"},
    {"⅓", "\\frac{1}{3}"},
    {"⅔", "\\frac{2}{3}"},
    {"∪", "\\cup "},
    {"∩", "\\cap "},
    {"∈", "\\in "},
    {"∅", "\\emptyset "},
    {"√", " sqrt "},
    {"α", "\\alpha "},
    {"β", "\\beta "},
    {"γ", "\\gamma "},
    {"θ", "\\theta "},
    {"λ", "\\lambda "},
    {"μ", "\\mu "},
    {"φ", "\\phi "},
    {"ω", "\\omega "},
    {"≈", "\\approx "},
    {"⟨", "\\langle "},
    {"⟩", "\\rangle "},
    {"‘", "'"},
    {"’", "'"},
    {"“", "\""},
    {"”", "\""},
    {"，", ","},
    {"（", "("},
    {"）", ")"},
    {"：", ":"},
    {"＝", "="},
    {"＋", "+"},
    {"％", "%"},
    {"£", "\\$"},
    {"€", "\\$"},
    {"¥", "\\$"},
    {"\xc2\xa0", " "},
    {"\xe2\x80\x89", "\\,"},
    {"\xe2\x80\xaf", "\\,"},
    {"\xe2\x81\xa0", ""},
    {"\xe2\x80\x8b", ""},
    {"ℝ", "\\mathbb{R}"},
    {"…", "\\ldots "},
});

constexpr auto kAliases = std::to_array<Entry>({
    {"dfrac", "frac"},
    {"tfrac", "frac"},
    {"cfrac", "frac"},
    {"leq", "le"},
    {"leqslant", "le"},
    {"geq", "ge"},
    {"geqslant", "ge"},
    {"neq", "ne"},
    {"lt", "<"},
    {"gt", ">"},
    {"cdot", "*"},
    {"times", "*"},
    {"ast", "*"},
    {"div", "/"},
    {"varnothing", "emptyset"},
    {"lbrace", "set{"},
    {"rbrace", "set}"},
    {"lbrack", "["},
    {"rbrack", "]"},
    {"lvert", "|"},
    {"rvert", "|"},
    {"vert", "|"},
    {"mid", "|"},
    {"tbinom", "binom"},
    {"dbinom", "binom"},
    {"degree", "deg"},
    {"varphi", "phi"},
    {"varepsilon", "epsilon"},
    {"lparen", "("},
    {"rparen", ")"},
    {"colon", ":"},
    {"percent", "%"},
    {"land", "and"},
    {"lor", "or"},
    {"arctg", "arctan"},
    {"tg", "tan"},
});

// Commands that say how something looks.
constexpr auto kSilent = std::to_array<std::string_view>({
    "left",         "right",     "big",         "Big",      "bigg",     "Bigg",  "bigl",
    "bigr",         "Bigl",      "Bigr",        "biggl",    "biggr",    "Biggl", "Biggr",
    "displaystyle", "textstyle", "scriptstyle", "limits",   "nolimits", "rm",    "bf",
    "it",           "middle",    "hfill",       "noindent", "boxed",    "fbox",
});

constexpr auto kWide = std::to_array<std::string_view>({"quad", "qquad", "enspace", "thinspace"});

// Commands whose argument is words, or one letter in another shape.
constexpr auto kTextual = std::to_array<std::string_view>({
    "text",         "textbf",     "textit", "textrm", "textsf", "texttt", "textnormal",
    "mbox",         "hbox",       "mathrm", "mathbf", "mathit", "mathsf", "mathtt",
    "operatorname", "boldsymbol", "bm",     "emph",   "textup",
});

template <typename Table>
bool Contains(const Table& table, std::string_view name) {
  return std::find(table.begin(), table.end(), name) != table.end();
}

}  // namespace

std::string ReplaceUnicode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (static_cast<unsigned char>(text[i]) < 0x80) {
      out += text[i++];
      continue;
    }
    const auto found = std::find_if(kUnicode.begin(), kUnicode.end(), [&](const Entry& entry) {
      return text.substr(i).starts_with(entry.first);
    });
    if (found == kUnicode.end()) {
      out += text[i++];
    } else {
      out += found->second;
      i += found->first.size();
    }
  }
  return out;
}

std::string_view CommandAlias(std::string_view name) {
  const auto found = std::find_if(kAliases.begin(), kAliases.end(),
                                  [&](const Entry& entry) { return entry.first == name; });
  return found == kAliases.end() ? std::string_view() : found->second;
}

bool IsSilentCommand(std::string_view name) { return Contains(kSilent, name); }
bool IsSpaceCommand(std::string_view name) { return Contains(kWide, name); }
bool IsTextCommand(std::string_view name) { return Contains(kTextual, name); }

}  // namespace orrery::rewards
