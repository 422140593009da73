// Pages and ranges over a driver that keeps the books: nothing mapped twice, nothing lost.
#include "kernels/cuda/page_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "orchestrator/base/hash.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int64_t kPage = PagePool::kPageBytes;

struct Books {
  std::set<PageDriver::Page> pages;               // that exist
  std::map<std::byte*, PageDriver::Page> mapped;  // by address
  std::set<std::byte*> allowed;                   // may be read and written
  std::map<std::byte*, int64_t> ranges;           // reserved
  int64_t created = 0;
};

class BookkeepingDriver : public CountingDriver {
 public:
  explicit BookkeepingDriver(Books* books) : books_(*books) {}
  std::byte* Reserve(int64_t bytes) override {
    std::byte* at = CountingDriver::Reserve(bytes);
    books_.ranges[at] = bytes;
    return at;
  }
  void Unreserve(std::byte* at, int64_t bytes) override {
    EXPECT_EQ(books_.ranges[at], bytes);
    for (const auto& [address, page] : books_.mapped) {
      EXPECT_FALSE(address >= at && address < at + bytes) << "still mapped";
    }
    books_.ranges.erase(at);
  }
  Page Create(int64_t bytes) override {
    EXPECT_EQ(bytes, kPage);
    const Page page = static_cast<Page>(++books_.created);
    books_.pages.insert(page);
    return page;
  }
  void Destroy(Page page) override {
    for (const auto& [address, mapped] : books_.mapped) EXPECT_NE(mapped, page);
    EXPECT_EQ(books_.pages.erase(page), 1u);
  }
  void Map(std::byte* at, int64_t bytes, Page page) override {
    EXPECT_EQ(bytes, kPage);
    EXPECT_TRUE(books_.pages.contains(page));
    for (const auto& [address, mapped] : books_.mapped) EXPECT_NE(mapped, page) << "mapped twice";
    EXPECT_TRUE(books_.mapped.emplace(at, page).second);
  }
  void Allow(std::byte* at, int64_t bytes) override {
    for (int64_t i = 0; i < bytes; i += kPage) {
      EXPECT_TRUE(books_.mapped.contains(at + i));
      books_.allowed.insert(at + i);
    }
  }
  void Unmap(std::byte* at, int64_t bytes) override {
    EXPECT_EQ(bytes, kPage);
    EXPECT_EQ(books_.mapped.erase(at), 1u);
    books_.allowed.erase(at);
  }

 private:
  Books& books_;
};

std::shared_ptr<PagePool> MakePool(Books* books) {
  return std::make_shared<PagePool>(std::make_unique<BookkeepingDriver>(books));
}

TEST(PagePoolTest, RangeGrowsByWholePagesAndKeepsItsAddress) {
  Books books;
  {
    const auto pool = MakePool(&books);
    PageRange range(pool, 10 * kPage);
    EXPECT_EQ(pool->bytes(), 0);
    std::byte* const at = range.data();
    EXPECT_TRUE(range.Grow(1));
    EXPECT_EQ(range.bytes(), kPage);
    EXPECT_FALSE(range.Grow(kPage));
    EXPECT_TRUE(range.Grow(3 * kPage + 1));
    EXPECT_EQ(range.bytes(), 4 * kPage);
    EXPECT_EQ(range.data(), at);
    EXPECT_EQ(books.allowed.size(), 4u);
    range.Shrink(kPage + 1);
    EXPECT_EQ(range.bytes(), 2 * kPage);
    EXPECT_EQ(pool->bytes(), 4 * kPage);
    EXPECT_EQ(pool->idle_bytes(), 2 * kPage);
    pool->Trim();
    EXPECT_EQ(pool->bytes(), 2 * kPage);
    EXPECT_EQ(pool->peak_bytes(), 4 * kPage);
  }
  EXPECT_TRUE(books.pages.empty() && books.mapped.empty() && books.ranges.empty());
}

// The trainer and the cache of keys and values, turn by turn: no more than the larger of the two
// ever exists.
TEST(PagePoolTest, PagesChangeHands) {
  Books books;
  {
    const auto pool = MakePool(&books);
    PageRange kv(pool, 9 * kPage), first(pool, 9 * kPage), second(pool, 9 * kPage);
    for (int turn = 0; turn < 3; ++turn) {
      kv.Grow(7 * kPage);
      kv.Shrink(0);
      first.Grow(4 * kPage);
      second.Grow(2 * kPage);
      first.Shrink(0);
      second.Shrink(0);
    }
    EXPECT_EQ(books.created, 7);
    EXPECT_EQ(pool->peak_bytes(), 7 * kPage);
    EXPECT_EQ(pool->idle_bytes(), 7 * kPage);
  }
  EXPECT_TRUE(books.pages.empty());
}

TEST(PagePoolTest, AnyOrderBalances) {
  Books books;
  RandomStream random(HashSeed({3}));
  {
    const auto pool = MakePool(&books);
    std::vector<PageRange> ranges;
    for (int i = 0; i < 4; ++i) ranges.emplace_back(pool, 16 * kPage);
    for (int i = 0; i < 500; ++i) {
      PageRange& range = ranges[static_cast<size_t>(random.Uniform() * 4)];
      const auto bytes = static_cast<int64_t>(random.Uniform() * 16 * static_cast<double>(kPage));
      random.Uniform() < 0.5 ? (void)range.Grow(bytes) : range.Shrink(bytes);
      int64_t held = 0;
      for (const PageRange& r : ranges) held += r.bytes();
      ASSERT_EQ(held + pool->idle_bytes(), pool->bytes());
      ASSERT_EQ(static_cast<int64_t>(books.mapped.size()) * kPage, held);
    }
  }
  EXPECT_TRUE(books.pages.empty() && books.mapped.empty());
}

TEST(PagePoolTest, CountingPoolHandsOutDistinctAddresses) {
  const auto pool = std::make_shared<PagePool>(std::make_unique<CountingDriver>());
  EXPECT_FALSE(pool->real());
  PageRange a(pool, int64_t{1} << 40), b(pool, int64_t{1} << 40);
  a.Grow(int64_t{100} << 30);
  EXPECT_GE(b.data(), a.data() + (int64_t{1} << 40));
  EXPECT_EQ(pool->bytes(), int64_t{100} << 30);
}

}  // namespace
}  // namespace orrery::kernels::cuda
