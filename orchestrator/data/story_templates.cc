#include "orchestrator/data/story_templates.h"

#include <fmt/format.h>

#include <iterator>
#include <string_view>

#include "orchestrator/base/check.h"

namespace orrery::data {
namespace {

constexpr std::string_view kNames[] = {
    "Ann", "Ben", "Eva", "Max", "Tom", "Leo", "Mia", "Ida", "Kai", "Zoe", "Sam", "Amy", "Joe",
    "Kim", "Lea", "Nia", "Dan", "Eli", "Fay", "Gus", "Ivy", "Jon", "Lou", "Meg", "Ned"};
constexpr std::string_view kItems[] = {"pens",  "cups",  "nuts",  "hats",  "eggs",   "pins",
                                       "maps",  "keys",  "toys",  "cards", "coins",  "books",
                                       "balls", "plums", "pears", "beads", "shells", "stones",
                                       "beans", "rings", "bolts"};
constexpr std::string_view kContainers[] = {"boxes", "bags",  "jars", "tins",
                                            "sacks", "trays", "bins", "crates"};
constexpr int64_t kLargest = 99;

// What a story is made of. Members are drawn in this order, so a story is a function of the stream.
class Draw {
 public:
  explicit Draw(RandomStream& random) : random_(random) {
    const uint64_t a = random.Below(std::size(kNames));
    const uint64_t b = random.Below(std::size(kNames) - 1);
    const uint64_t c = random.Below(std::size(kNames) - 2);
    name = kNames[a];
    // The b-th of the names that are left, then the c-th.
    const uint64_t second = b + (b >= a ? 1 : 0);
    other = kNames[second];
    const uint64_t low = std::min(a, second), high = std::max(a, second);
    uint64_t third = c + (c >= low ? 1 : 0);
    third += third >= high ? 1 : 0;
    third_name = kNames[third];
    const uint64_t i = random.Below(std::size(kItems));
    const uint64_t j = random.Below(std::size(kItems) - 1);
    item = kItems[i];
    other_item = kItems[j + (j >= i ? 1 : 0)];
    const uint64_t k = random.Below(std::size(kContainers));
    const uint64_t l = random.Below(std::size(kContainers) - 1);
    container = kContainers[k];
    other_container = kContainers[l + (l >= k ? 1 : 0)];
  }

  // Uniform in [low, high].
  int64_t Number(int64_t low, int64_t high) {
    CHECK_LE(low, high);
    return low + static_cast<int64_t>(random_.Below(static_cast<uint64_t>(high - low + 1)));
  }

  std::string_view name, other, third_name;
  std::string_view item, other_item;
  std::string_view container, other_container;

 private:
  RandomStream& random_;
};

Operand N(int64_t value) { return Operand::Number(value); }
Operand R(int step) { return Operand::Result(step); }

// The easy family.

Story GivesMore(Draw& d) {
  const int64_t a = d.Number(2, 70), b = d.Number(2, kLargest - a);
  return {fmt::format("{0} has {1} {2}. {3} gives {0} {4} more. How many {2} does {0} have now?",
                      d.name, a, d.item, d.other, b),
          {{N(a), '+', N(b)}}};
}

Story InContainers(Draw& d) {
  const int64_t a = d.Number(2, 9), b = d.Number(2, 9);
  return {fmt::format("{0} has {1} {2} with {3} {4} each. How many {4} does {0} have?", d.name, a,
                      d.container, b, d.item),
          {{N(a), '*', N(b)}}};
}

Story Loses(Draw& d) {
  const int64_t a = d.Number(10, kLargest), b = d.Number(2, a - 1);
  return {fmt::format("{0} has {1} {2} and loses {3}. How many {2} does {0} have now?", d.name, a,
                      d.item, b),
          {{N(a), '-', N(b)}}};
}

Story FindsAndGives(Draw& d) {
  const int64_t a = d.Number(2, 70), b = d.Number(2, kLargest - a), c = d.Number(2, a + b - 1);
  return {fmt::format("{0} has {1} {2}, finds {3} more and gives {4} to {5}. How many {2} does {0} "
                      "have now?",
                      d.name, a, d.item, b, c, d.other),
          {{N(a), '+', N(b)}, {R(0), '-', N(c)}}};
}

Story SellsFromContainers(Draw& d) {
  const int64_t a = d.Number(2, 9), b = d.Number(2, 9), c = d.Number(1, a * b - 1);
  return {fmt::format("{0} has {1} {2} with {3} {4} each and sells {5} {4}. How many {4} does {0} "
                      "have now?",
                      d.name, a, d.container, b, d.item, c),
          {{N(a), '*', N(b)}, {R(0), '-', N(c)}}};
}

Story BuysContainers(Draw& d) {
  const int64_t a = d.Number(2, 9), b = d.Number(2, 9), c = d.Number(2, kLargest - a * b);
  return {fmt::format("{0} has {1} {2} and buys {3} {4} with {5} {2} each. How many {2} does {0} "
                      "have now?",
                      d.name, c, d.item, a, d.container, b),
          {{N(a), '*', N(b)}, {N(c), '+', R(0)}}};
}

// The rest of the full family.

Story TimesAsMany(Draw& d) {
  const int64_t b = d.Number(2, 9), a = d.Number(2, kLargest / (b + 1));
  return {fmt::format("{0} has {1} {2}. {3} has {4} times as many. How many {2} do they have in "
                      "all?",
                      d.name, a, d.item, d.other, b),
          {{N(a), '*', N(b)}, {R(0), '+', N(a)}}};
}

Story SharesOut(Draw& d) {
  const int64_t b = d.Number(2, 9), each = d.Number(2, 9), c = d.Number(2, 30);
  return {fmt::format("{0} puts {1} {2} into {3} {4}, the same into each, then adds {5} to each. "
                      "How many {2} are in one now?",
                      d.name, b * each, d.item, b, d.container, c),
          {{N(b * each), '/', N(b)}, {R(0), '+', N(c)}}};
}

Story SellsAndFinds(Draw& d) {
  const int64_t a = d.Number(2, 9), b = d.Number(2, 9), c = d.Number(1, a * b - 1);
  const int64_t e = d.Number(2, kLargest - (a * b - c));
  return {
      fmt::format("{0} has {1} {2} with {3} {4} each, sells {5} {4} and finds {6}. How many {4} "
                  "does {0} have now?",
                  d.name, a, d.container, b, d.item, c, e),
      {{N(a), '*', N(b)}, {R(0), '-', N(c)}, {R(1), '+', N(e)}}};
}

Story TwoKinds(Draw& d) {
  const int64_t a = d.Number(2, 7), b = d.Number(2, 7), c = d.Number(2, 7), e = d.Number(2, 7);
  return {fmt::format("{0} has {1} {2} with {3} {4} each and {5} {6} with {7} {8} each. How many "
                      "things does {0} have?",
                      d.name, a, d.container, b, d.item, c, d.other_container, e, d.other_item),
          {{N(a), '*', N(b)}, {N(c), '*', N(e)}, {R(0), '+', R(1)}}};
}

Story MoreThanTimes(Draw& d) {
  const int64_t c = d.Number(2, 4), a = d.Number(2, 14), b = d.Number(2, kLargest / c - a);
  const int64_t e = d.Number(1, (a + b) * c - 1);
  return {
      fmt::format("{0} has {1} {2}. {3} has {4} more than {0}. {5} had {6} times as many as {3} "
                  "and loses {7}. How many {2} does {5} have now?",
                  d.name, a, d.item, d.other, b, d.third_name, c, e),
      {{N(a), '+', N(b)}, {R(0), '*', N(c)}, {R(1), '-', N(e)}}};
}

Story SellsAndShares(Draw& d) {
  const int64_t a = d.Number(3, 9), b = d.Number(3, 9), e = d.Number(2, 6);
  // What is sold leaves a multiple of e, at least e.
  const int64_t left = e * d.Number(1, (a * b - 1) / e);
  return {fmt::format("{0} has {1} {2} with {3} {4} each, sells {5} {4} and shares the rest with "
                      "friends, the same for all {6}. How many {4} does one have?",
                      d.name, a, d.container, b, d.item, a * b - left, e),
          {{N(a), '*', N(b)}, {R(0), '-', N(a * b - left)}, {R(1), '/', N(e)}}};
}

constexpr Story (*kTemplates[kNumStoryTemplates])(Draw&) = {
    GivesMore,   InContainers, Loses,         FindsAndGives, SellsFromContainers, BuysContainers,
    TimesAsMany, SharesOut,    SellsAndFinds, TwoKinds,      MoreThanTimes,       SellsAndShares};

}  // namespace

Story DrawStory(int template_index, RandomStream& random) {
  CHECK_GE(template_index, 0);
  CHECK_LT(template_index, kNumStoryTemplates);
  Draw draw(random);
  return kTemplates[template_index](draw);
}

}  // namespace orrery::data
