// Sum of squares, largest magnitude and verdict of each gradient: the definition is reference.py.
//
// What is true here: squares are taken in FP64, where those of narrower formats are exact, and summed
// by the tree of reference.py, whatever thread takes which part. The largest magnitude is found on
// the bits as integers, which puts Inf above all finite values and NaN above Inf.

#include "../_native/floats.h"
#include "../_native/units.h"

namespace {

constexpr int kBranches = 1024;  // of the tree, per level: reference.py, BRANCHES
static_assert(kUnit % kBranches == 0, "a unit is a whole number of branches");

inline int64_t chunks_of(int64_t count) { return count / kBranches + (count % kBranches != 0); }

// Adds the upper half to the lower until one is left. Each level is a loop of its own, whose length
// the compiler knows: a short loop of unknown length spends more on checks than on sums.
template <int size>
inline double fold(double* values) {
  if constexpr (size == 1) {
    return values[0];
  } else {
    for (int i = 0; i < size / 2; ++i) values[i] += values[i + size / 2];
    return fold<size / 2>(values);
  }
}

struct Fp32 {
  using Stored = f32;
  using Bits = int32_t;
  static double wide(float x) { return x; }
  static int32_t magnitude(float x) { return static_cast<int32_t>(bits_of(x) & fp32.magnitude()); }
  static double of_magnitude(int64_t bits) { return float_of(static_cast<uint32_t>(bits)); }
};

struct Bf16 {
  using Stored = u16;
  using Bits = int32_t;
  static double wide(uint16_t x) { return widen_bf16(x); }
  static int32_t magnitude(uint16_t x) { return static_cast<int32_t>(x & bf16.magnitude()); }
  static double of_magnitude(int64_t bits) { return widen_bf16(static_cast<uint32_t>(bits)); }
};

struct Fp16 {
  using Stored = u16;
  using Bits = int32_t;
  static double wide(uint16_t x) { return widen_fp16(x); }
  static int32_t magnitude(uint16_t x) { return static_cast<int32_t>(x & fp16.magnitude()); }
  static double of_magnitude(int64_t bits) { return widen_fp16(static_cast<uint32_t>(bits)); }
};

struct Fp64 {
  using Stored = f64;
  using Bits = int64_t;
  static double wide(double x) { return x; }
  static int64_t magnitude(double x) {
    int64_t u;
    std::memcpy(&u, &x, sizeof u);
    return u & INT64_MAX;
  }
  static double of_magnitude(int64_t bits) {
    double x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
  }
};

// Gives the sum of squares of one full chunk, and raises `largest`.
template <typename Kind>
double chunk_sum(const typename Kind::Stored* __restrict values, typename Kind::Bits* largest) {
  constexpr int lanes = kBranches / 8;  // the first three levels stay in registers
  double sums[lanes];
  typename Kind::Bits most = 0;
  for (int i = 0; i < kBranches; ++i) {
    const typename Kind::Bits magnitude = Kind::magnitude(values[i]);
    most = magnitude > most ? magnitude : most;
  }
  for (int i = 0; i < lanes; ++i) {
    const auto square = [&](int row) {
      const double x = Kind::wide(values[i + row * lanes]);
      return x * x;
    };
    sums[i] = ((square(0) + square(4)) + (square(2) + square(6))) +
              ((square(1) + square(5)) + (square(3) + square(7)));
  }
  *largest = most > *largest ? most : *largest;
  return fold<lanes>(sums);
}

// Writes the sum of each chunk of a unit; gives the bits of the largest magnitude.
template <typename Kind>
int64_t unit_stats(const unsigned char* grads, int64_t start, int64_t count, double* sums) {
  const typename Kind::Stored* values =
      reinterpret_cast<const typename Kind::Stored*>(grads) + start;
  typename Kind::Bits largest = 0;
  const int64_t whole = count / kBranches, rest = count % kBranches;
  for (int64_t chunk = 0; chunk < whole; ++chunk) {
    sums[chunk] = chunk_sum<Kind>(values + chunk * kBranches, &largest);
  }
  if (rest) {
    typename Kind::Stored padded[kBranches];
    std::memset(padded, 0, sizeof padded);
    std::memcpy(padded, values + whole * kBranches,
                static_cast<size_t>(rest) * sizeof(typename Kind::Stored));
    sums[whole] = chunk_sum<Kind>(padded, &largest);
  }
  return largest;
}

// Folds the chunks' sums, level by level, in place.
double tree(double* sums, int64_t count) {
  double values[kBranches];
  while (count > 1) {
    const int64_t groups = chunks_of(count);
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t left = count - group * kBranches;
      const size_t size = static_cast<size_t>(left < kBranches ? left : kBranches);
      std::memset(values, 0, sizeof values);
      std::memcpy(values, sums + group * kBranches, size * sizeof(double));
      sums[group] = fold<kBranches>(values);
    }
    count = groups;
  }
  return sums[0];
}

double of_magnitude(int32_t format, int64_t bits) {
  if (format == kFp32) return Fp32::of_magnitude(bits);
  if (format == kBf16) return Bf16::of_magnitude(bits);
  if (format == kFp16) return Fp16::of_magnitude(bits);
  return Fp64::of_magnitude(bits);
}

}  // namespace

// first_units, first_chunks: room for n + 1; sums: room for one number per chunk of each tensor;
// largest: room for one number per unit of each tensor; table: (n, 3), zeros on entry.
NARROWGATE_KERNEL(narrowgate_grad_stats_)
(int64_t n, const int64_t* counts, const unsigned char* const* grads, const int32_t* formats,
 int64_t* first_units, int64_t* first_chunks, double* sums, int64_t* largest, double* table,
 int32_t threads) {
  first_chunks[0] = 0;
  for (int64_t i = 0; i < n; ++i) first_chunks[i + 1] = first_chunks[i] + chunks_of(counts[i]);
  for_units(n, counts, first_units, threads, [&](int64_t tensor, int64_t start, int64_t count) {
    double* to = sums + first_chunks[tensor] + start / kBranches;
    const unsigned char* from = grads[tensor];
    int64_t most;
    switch (formats[tensor]) {
      case kFp32: most = unit_stats<Fp32>(from, start, count, to); break;
      case kBf16: most = unit_stats<Bf16>(from, start, count, to); break;
      case kFp16: most = unit_stats<Fp16>(from, start, count, to); break;
      default: most = unit_stats<Fp64>(from, start, count, to); break;
    }
    largest[first_units[tensor] + start / kUnit] = most;
  });
  for (int64_t i = 0; i < n; ++i) {
    if (counts[i] == 0) continue;
    int64_t most = 0;
    for (int64_t unit = first_units[i]; unit < first_units[i + 1]; ++unit) {
      most = largest[unit] > most ? largest[unit] : most;
    }
    double* row = table + 3 * i;
    row[0] = tree(sums + first_chunks[i], chunks_of(counts[i]));
    row[1] = of_magnitude(formats[i], most);
    row[2] = row[1] - row[1] == 0 ? 0.0 : 1.0;  // Inf - Inf and NaN - NaN are NaN
  }
}
