#include "rewards/rational.h"

#include <algorithm>
#include <cmath>

#include "orchestrator/base/check.h"
#include "rewards/text.h"

namespace orrery::rewards {
namespace {

// Scratch space of BIGNUM operations; not shared between threads.
BN_CTX* Scratch() {
  struct Free {
    void operator()(BN_CTX* p) const { BN_CTX_free(p); }
  };
  thread_local const std::unique_ptr<BN_CTX, Free> scratch(BN_CTX_new());
  return scratch.get();
}

Integer PowerOfTen(int64_t exponent) {
  Integer result(1), square(10);
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result = result * square;
    if (exponent > 1) square = square * square;
  }
  return result;
}

// floor(a^(1/n)) for a >= 0, by bisection on the bits.
Integer FloorRoot(const Integer& a, int64_t n) {
  Integer root(0);
  for (int bit = a.num_bits() / static_cast<int>(n) + 1; bit >= 0; --bit) {
    Integer candidate(1);
    for (int i = 0; i < bit; ++i) candidate = candidate + candidate;
    candidate = root + candidate;
    Integer power(1);
    for (int64_t i = 0; i < n; ++i) power = power * candidate;
    if (!(a < power)) root = candidate;
  }
  return root;
}

std::optional<Integer> ExactRoot(const Integer& a, int64_t n) {
  Integer root = FloorRoot(a, n);
  Integer power(1);
  for (int64_t i = 0; i < n; ++i) power = power * root;
  return power == a ? std::optional(root) : std::nullopt;
}

bool Fits(const Rational& a, const Rational& b) {
  return a.numerator().num_bits() + b.numerator().num_bits() + a.denominator().num_bits() +
             b.denominator().num_bits() <=
         2 * Rational::kMaxBits;
}

}  // namespace

Integer::Integer(int64_t value) : value_(BN_new()) {
  const bool negative = value < 0;
  BN_set_word(value_.get(),
              negative ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value));
  BN_set_negative(value_.get(), negative);
}

Integer::Integer(const Integer& other) : value_(BN_dup(other.value_.get())) {}

Integer Integer::FromDigits(std::string_view digits) {
  Integer result;
  BIGNUM* target = result.value_.get();
  const std::string text(digits);
  CHECK(text.empty() || BN_dec2bn(&target, text.c_str()) != 0) << text;
  return result;
}

std::optional<int64_t> Integer::ToInt64() const {
  if (num_bits() > 62) return std::nullopt;
  const auto magnitude = static_cast<int64_t>(BN_get_word(value_.get()));
  return IsNegative() ? -magnitude : magnitude;
}

double Integer::TopBits(int* shift) const {
  *shift = std::max(0, num_bits() - 64);
  Integer top;
  BN_rshift(top.value_.get(), value_.get(), *shift);
  const auto magnitude = static_cast<double>(BN_get_word(top.value_.get()));
  return IsNegative() ? -magnitude : magnitude;
}

std::string Integer::ToString() const {
  char* text = BN_bn2dec(value_.get());
  std::string result(text ? text : "");
  OPENSSL_free(text);
  return result;
}

Integer operator+(const Integer& a, const Integer& b) {
  Integer sum;
  BN_add(sum.value_.get(), a.value_.get(), b.value_.get());
  return sum;
}

Integer operator-(const Integer& a, const Integer& b) {
  Integer difference;
  BN_sub(difference.value_.get(), a.value_.get(), b.value_.get());
  return difference;
}

Integer operator*(const Integer& a, const Integer& b) {
  Integer product;
  BN_mul(product.value_.get(), a.value_.get(), b.value_.get(), Scratch());
  return product;
}

Integer operator/(const Integer& a, const Integer& b) {
  CHECK(!b.IsZero());
  Integer quotient;
  BN_div(quotient.value_.get(), nullptr, a.value_.get(), b.value_.get(), Scratch());
  return quotient;
}

bool operator==(const Integer& a, const Integer& b) {
  return BN_cmp(a.value_.get(), b.value_.get()) == 0;
}

bool operator<(const Integer& a, const Integer& b) {
  return BN_cmp(a.value_.get(), b.value_.get()) < 0;
}

Integer Gcd(const Integer& a, const Integer& b) {
  Integer result;
  BN_gcd(result.value_.get(), a.value_.get(), b.value_.get(), Scratch());
  return result;
}

std::optional<Rational> Rational::Make(Integer numerator, Integer denominator) {
  if (denominator.IsZero()) return std::nullopt;
  if (denominator.IsNegative()) {
    numerator = Integer(0) - numerator;
    denominator = Integer(0) - denominator;
  }
  if (!(denominator == Integer(1))) {
    const Integer common = Gcd(numerator, denominator);
    numerator = numerator / common;
    denominator = denominator / common;
  }
  if (numerator.num_bits() > kMaxBits || denominator.num_bits() > kMaxBits) return std::nullopt;
  Rational result;
  result.numerator_ = std::move(numerator);
  result.denominator_ = std::move(denominator);
  return result;
}

std::optional<Rational> Rational::FromDecimal(std::string_view text) {
  constexpr size_t kMaxDigits = kMaxBits / 4;  // log2(10) < 4
  std::string digits;
  int64_t scale = 0;
  size_t i = 0;
  for (bool point = false; i < text.size() && (IsDigit(text[i]) || (text[i] == '.' && !point));
       ++i) {
    if (text[i] == '.') {
      point = true;
    } else {
      digits += text[i];
      if (point) ++scale;
    }
  }
  if (digits.empty() || digits.size() > kMaxDigits) return std::nullopt;
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    const bool negative = ++i < text.size() && text[i] == '-';
    if (i < text.size() && (text[i] == '-' || text[i] == '+')) ++i;
    int64_t exponent = 0;
    const size_t begin = i;
    for (; i < text.size() && IsDigit(text[i]) && i - begin < 6; ++i) {
      exponent = 10 * exponent + (text[i] - '0');
    }
    if (i == begin) return std::nullopt;
    scale += negative ? exponent : -exponent;
  }
  if (i != text.size() || std::abs(scale) > static_cast<int64_t>(kMaxDigits)) return std::nullopt;
  const Integer value = Integer::FromDigits(digits);
  return scale >= 0 ? Make(value, PowerOfTen(scale)) : Make(value * PowerOfTen(-scale), 1);
}

double Rational::ToDouble() const {
  // Both parts may be beyond the range of double; their ratio need not be.
  int up = 0, down = 0;
  const double ratio = numerator_.TopBits(&up) / denominator_.TopBits(&down);
  return std::ldexp(ratio, up - down);
}

std::string Rational::ToString() const {
  return IsInteger() ? numerator_.ToString()
                     : numerator_.ToString() + "/" + denominator_.ToString();
}

bool operator<(const Rational& a, const Rational& b) {
  return a.numerator_ * b.denominator_ < b.numerator_ * a.denominator_;
}

std::optional<Rational> Add(const Rational& a, const Rational& b) {
  if (!Fits(a, b)) return std::nullopt;
  return Rational::Make(a.numerator() * b.denominator() + b.numerator() * a.denominator(),
                        a.denominator() * b.denominator());
}

std::optional<Rational> Subtract(const Rational& a, const Rational& b) {
  if (!Fits(a, b)) return std::nullopt;
  return Rational::Make(a.numerator() * b.denominator() - b.numerator() * a.denominator(),
                        a.denominator() * b.denominator());
}

std::optional<Rational> Multiply(const Rational& a, const Rational& b) {
  if (!Fits(a, b)) return std::nullopt;
  return Rational::Make(a.numerator() * b.numerator(), a.denominator() * b.denominator());
}

std::optional<Rational> Divide(const Rational& a, const Rational& b) {
  if (!Fits(a, b)) return std::nullopt;
  return Rational::Make(a.numerator() * b.denominator(), a.denominator() * b.numerator());
}

std::optional<Rational> Power(const Rational& base, int64_t exponent) {
  if (base.IsZero() && exponent <= 0) return std::nullopt;
  const int64_t count = std::abs(exponent);
  const int64_t bits = std::max(base.numerator().num_bits(), base.denominator().num_bits());
  const bool is_unit = bits <= 1;  // -1, 0 or 1
  if (!is_unit && count > Rational::kMaxBits / bits) return std::nullopt;
  Rational result(1), square = base;
  for (int64_t rest = is_unit ? count % 2 + 2 : count; rest > 0; rest >>= 1) {
    if (rest & 1) result = *Multiply(result, square);
    if (rest > 1) {
      std::optional<Rational> next = Multiply(square, square);
      if (!next) return std::nullopt;
      square = *std::move(next);
    }
  }
  return exponent < 0 ? Divide(1, result) : std::optional(result);
}

std::optional<Rational> Root(const Rational& a, int64_t n) {
  constexpr int kMaxRootBits = 512;  // roots of larger numbers are left to floating point
  if (n < 2 || n > 64 || (a.IsNegative() && n % 2 == 0)) return std::nullopt;
  if (a.numerator().num_bits() > kMaxRootBits || a.denominator().num_bits() > kMaxRootBits) {
    return std::nullopt;
  }
  const Integer magnitude = a.IsNegative() ? Integer(0) - a.numerator() : a.numerator();
  const std::optional<Integer> numerator = ExactRoot(magnitude, n);
  const std::optional<Integer> denominator = ExactRoot(a.denominator(), n);
  if (!numerator || !denominator) return std::nullopt;
  return Rational::Make(a.IsNegative() ? Integer(0) - *numerator : *numerator, *denominator);
}

}  // namespace orrery::rewards
