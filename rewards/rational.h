// Exact fractions of integers of any size up to a limit, over OpenSSL's BIGNUM. Every operation
// that could leave the limit returns nullopt instead: no answer of a model can make the grader
// allocate or wait without bound.
#pragma once

#include <openssl/bn.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace orrery::rewards {

class Integer {
 public:
  Integer() : Integer(0) {}
  Integer(int64_t value);  // implicit: small constants read naturally
  Integer(const Integer& other);
  Integer(Integer&&) = default;
  Integer& operator=(Integer other) {
    value_ = std::move(other.value_);
    return *this;
  }
  static Integer FromDigits(std::string_view digits);  // REQUIRES: decimal digits only

  bool IsZero() const { return BN_is_zero(value_.get()); }
  bool IsNegative() const { return BN_is_negative(value_.get()); }
  bool IsOdd() const { return BN_is_odd(value_.get()); }
  int num_bits() const { return BN_num_bits(value_.get()); }
  std::optional<int64_t> ToInt64() const;
  // The value is TopBits(&shift) * 2^shift up to the rounding of its top 64 bits.
  double TopBits(int* shift) const;
  std::string ToString() const;

  friend Integer operator+(const Integer& a, const Integer& b);
  friend Integer operator-(const Integer& a, const Integer& b);
  friend Integer operator*(const Integer& a, const Integer& b);
  friend Integer operator/(const Integer& a, const Integer& b);  // towards zero; REQUIRES: b != 0
  friend bool operator==(const Integer& a, const Integer& b);
  friend bool operator<(const Integer& a, const Integer& b);
  friend Integer Gcd(const Integer& a, const Integer& b);

 private:
  struct Free {
    void operator()(BIGNUM* p) const { BN_free(p); }
  };
  std::unique_ptr<BIGNUM, Free> value_;
};

class Rational {
 public:
  static constexpr int kMaxBits = 16384;  // of numerator and of denominator

  Rational() = default;
  Rational(int64_t value) : numerator_(value) {}
  // Lowest terms, denominator positive. nullopt: division by zero, or too large.
  static std::optional<Rational> Make(Integer numerator, Integer denominator);
  // "12", "1.25", ".5", "1.5e-3": decimal notation, exactly. nullopt: another text, or too large.
  static std::optional<Rational> FromDecimal(std::string_view text);

  const Integer& numerator() const { return numerator_; }
  const Integer& denominator() const { return denominator_; }
  bool IsInteger() const { return denominator_ == Integer(1); }
  bool IsZero() const { return numerator_.IsZero(); }
  bool IsNegative() const { return numerator_.IsNegative(); }
  double ToDouble() const;  // within two roundings; +-inf beyond the range of double
  std::string ToString() const;

  friend bool operator==(const Rational& a, const Rational& b) {
    return a.numerator_ == b.numerator_ && a.denominator_ == b.denominator_;
  }
  friend bool operator<(const Rational& a, const Rational& b);

 private:
  Integer numerator_ = 0;
  Integer denominator_ = 1;
};

std::optional<Rational> Add(const Rational& a, const Rational& b);
std::optional<Rational> Subtract(const Rational& a, const Rational& b);
std::optional<Rational> Multiply(const Rational& a, const Rational& b);
std::optional<Rational> Divide(const Rational& a, const Rational& b);
std::optional<Rational> Power(const Rational& base, int64_t exponent);
// The real n-th root where it is rational (of a negative number only for odd n).
std::optional<Rational> Root(const Rational& a, int64_t n);

}  // namespace orrery::rewards
