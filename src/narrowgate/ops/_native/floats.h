// Number formats as bits: FP32, bf16, fp16, and the split of an FP32 master into 16 + 16 bits.
//
// What is true here: one element at a time, integers wherever the definitions in Python use them, so
// that no compiler can fuse a rounding away; loops over these functions are vectorised as they stand.
// The formulas and their proofs are in split_master/reference.py and join_master/reference.py; this
// file has the same names. Everything is local to the file that includes it: the same source is
// compiled once per instruction set, and a linker must never mix the results.
#pragma once

#include <cstdint>
#include <cstring>

namespace {

// Memory that may start at any byte, and be read as floats here and as integers there.
using f32 = float __attribute__((aligned(1), may_alias));
using f64 = double __attribute__((aligned(1), may_alias));
using u16 = uint16_t __attribute__((aligned(1), may_alias));
using i16 = int16_t __attribute__((aligned(1), may_alias));
using u32 = uint32_t __attribute__((aligned(1), may_alias));
using i64 = int64_t __attribute__((aligned(1), may_alias));

enum Format : int32_t { kFp32 = 0, kBf16 = 1, kFp16 = 2, kFp64 = 3 };  // _native/__init__.py: FORMAT

struct Spec {
  int exponent_bits, mantissa_bits;
  constexpr int sign_shift() const { return exponent_bits + mantissa_bits; }
  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  constexpr int emin() const { return 1 - bias(); }
  constexpr uint32_t inf() const { return ((1u << exponent_bits) - 1) << mantissa_bits; }
  constexpr uint32_t nan() const { return inf() | 1u << (mantissa_bits - 1); }
  constexpr uint32_t magnitude() const { return (1u << sign_shift()) - 1; }
};
constexpr Spec fp32{8, 23}, bf16{8, 7}, fp16{5, 10};

constexpr int kBf16Low = fp32.mantissa_bits - bf16.mantissa_bits;  // bits below the half: 16
constexpr int kSignShift = fp32.sign_shift() - fp16.sign_shift();  // 16
constexpr uint32_t kFp16Sign = 1u << fp16.sign_shift();
constexpr int kGuardBits = 15;  // the remainder's step is 2^-15 of the half's
constexpr int kExtra = fp16.mantissa_bits + kGuardBits - fp32.mantissa_bits;  // 2
constexpr int kNormal = fp16.emin() + fp32.bias();  // first FP32 exponent field normal in fp16: 113
// FP32 exponent field of the remainder's step at the bottom of the normal range: 88.
constexpr int kStepField = fp16.emin() - fp16.mantissa_bits - kGuardBits + fp32.bias();
// FP32 bits just below the midpoint between fp16's largest value and 2^16: half a step of fp16
// below 2^16, less one.
constexpr uint32_t kLargestFp16 =
    (static_cast<uint32_t>(fp16.bias() + 1 + fp32.bias()) << fp32.mantissa_bits) -
    (1u << (fp32.mantissa_bits - fp16.mantissa_bits - 1)) - 1;

inline uint32_t bits_of(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}

inline float float_of(uint32_t u) {
  float x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}

inline float widen_bf16(uint32_t code) { return float_of(code << kBf16Low); }

inline float widen_fp16(uint32_t code) {
  constexpr int shift = fp32.mantissa_bits - fp16.mantissa_bits;
  constexpr uint32_t rebias = static_cast<uint32_t>(fp32.bias() - fp16.bias())
                              << fp32.mantissa_bits;
  constexpr uint32_t smallest_normal = static_cast<uint32_t>(kNormal) << fp32.mantissa_bits;
  const uint32_t sign = (code & kFp16Sign) << kSignShift;
  const uint32_t magnitude = code & fp16.magnitude();
  const uint32_t moved = magnitude << shift;
  // Subnormal: its bits below a one at 2^-14, from which that one is then taken off. Exact.
  const float small = float_of(smallest_normal + moved) - float_of(smallest_normal);
  uint32_t u = moved + rebias;
  u = magnitude < (1u << fp16.mantissa_bits) ? bits_of(small) : u;
  u = magnitude >= fp16.inf() ? moved | fp32.inf() : u;
  return float_of(u | sign);
}

inline float join_bf16(uint32_t code, int32_t remainder) {
  return float_of((code << kBf16Low) + static_cast<uint32_t>(remainder));
}

inline float join_fp16(uint32_t code, int32_t remainder) {
  const int32_t magnitude = static_cast<int32_t>(code & fp16.magnitude());
  const int32_t field = magnitude >> fp16.mantissa_bits;
  const int32_t binade = field > 1 ? field - 1 : 0;
  const int32_t units =
      (magnitude - (binade << fp16.mantissa_bits)) * (1 << kGuardBits) + remainder;
  const float step = float_of(static_cast<uint32_t>(binade + kStepField) << fp32.mantissa_bits);
  uint32_t u = bits_of(static_cast<float>(units) * step);
  u ^= (code & kFp16Sign) << kSignShift;
  u |= magnitude >= static_cast<int32_t>(fp16.inf()) ? fp32.inf() : 0u;
  return float_of(u);
}

struct Pair {
  uint16_t half;
  int16_t remainder;
};

inline Pair split_bf16(float w) {
  const uint32_t u = bits_of(w);
  const uint32_t half = (u + (1u << (kBf16Low - 1))) >> kBf16Low;
  const bool nan = (u & fp32.magnitude()) > fp32.inf();
  return {static_cast<uint16_t>(nan ? bf16.nan() : half),
          static_cast<int16_t>(static_cast<uint16_t>(nan ? 0u : u))};
}

inline Pair split_fp16(float w) {
  const uint32_t u = bits_of(w);
  const uint32_t magnitude = u & fp32.magnitude();
  const int32_t field = static_cast<int32_t>(magnitude >> fp32.mantissa_bits);
  // A shift of 28 already takes every significand to 0, and so stands for all larger.
  constexpr int32_t most = fp32.mantissa_bits + kExtra + 3;
  int32_t shift = kNormal + 1 - field;
  shift = shift < 1 ? 1 : shift;
  shift = shift > most ? most : shift;
  constexpr uint32_t hidden = 1u << fp32.mantissa_bits;
  uint32_t units = ((u & (hidden - 1)) | hidden) << (kExtra + 1);
  units += ((units >> shift) & 1u) - 1u;
  units = (units + ((1u << shift) >> 1)) >> shift;
  const uint32_t significand =
      (units + ((units >> kGuardBits) & 1u) + (1u << (kGuardBits - 1)) - 1u) >> kGuardBits;
  int32_t rest = static_cast<int32_t>(units - (significand << kGuardBits));
  rest >>= significand >> (fp16.mantissa_bits + 1);  // rounded up into the next binade
  const int32_t binade = field > kNormal ? field - kNormal : 0;
  uint32_t half = (static_cast<uint32_t>(binade) << fp16.mantissa_bits) + significand;
  half = magnitude > kLargestFp16 ? fp16.inf() : half;
  half |= (u >> kSignShift) & kFp16Sign;
  half = magnitude > fp32.inf() ? fp16.nan() : half;
  rest = magnitude > kLargestFp16 ? 0 : rest;
  return {static_cast<uint16_t>(half), static_cast<int16_t>(rest)};
}

}  // namespace
