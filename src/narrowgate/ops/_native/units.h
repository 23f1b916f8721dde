// Work over many tensors in one parallel region.
//
// What is true here: a list of tensors is cut into units, and threads fetch units until none is
// left. Which thread computes a unit changes nothing in its bits. Sizes are 64-bit throughout.
#pragma once

#include <cstdint>

#define NARROWGATE_JOIN2(a, b) a##b
#define NARROWGATE_JOIN(a, b) NARROWGATE_JOIN2(a, b)
// The exported name of an op's kernel: narrowgate_<op>_<body>; CMake defines the body's name.
#define NARROWGATE_KERNEL(op) \
  extern "C" __attribute__((visibility("default"))) void NARROWGATE_JOIN(op, NARROWGATE_BODY)

namespace {

// Elements per unit: AdamW moves 28 bytes for each, so about 0.9 MB or 0.1 ms at 10 GB/s, a
// thousand times what fetching a unit costs; and a tensor of 2^20 elements still feeds 32 threads.
constexpr int64_t kUnit = int64_t{1} << 15;

// Elements that are widened, updated and narrowed together: two rooms of FP32 are 4 KiB, and with
// the five streams beside them 18 KiB, within a first-level cache of 32 KiB.
constexpr int kTile = 512;

inline int64_t units_of(int64_t count) { return count / kUnit + (count % kUnit != 0); }

// Calls body(tensor, start, count) for every unit of every tensor.
//
// first: room for n + 1 numbers; gets the number of each tensor's first unit.
template <typename Body>
void for_units(int64_t n, const int64_t* counts, int64_t* first, int threads, const Body& body) {
  first[0] = 0;
  for (int64_t i = 0; i < n; ++i) first[i + 1] = first[i] + units_of(counts[i]);
  const int64_t total = first[n];
  const auto run = [&](int64_t unit) {
    int64_t low = 0, high = n;  // first[low] <= unit < first[high]
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (first[middle] <= unit ? low : high) = middle;
    }
    const int64_t start = (unit - first[low]) * kUnit;
    const int64_t left = counts[low] - start;
    body(low, start, left < kUnit ? left : kUnit);
  };
  if (threads > total) threads = static_cast<int>(total);
  if (threads <= 1) {
    for (int64_t unit = 0; unit < total; ++unit) run(unit);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
  for (int64_t unit = 0; unit < total; ++unit) run(unit);
}

}  // namespace
