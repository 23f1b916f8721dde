// A 64-bit checksum of 16-bit tensors: the definition is reference.py. Arithmetic is modulo 2^64,
// so the order of summation, and with it the number of threads, changes nothing.

#include "../_native/floats.h"
#include "../_native/units.h"

namespace {

constexpr uint64_t kGamma = 0x9E3779B97F4A7C15, kMix1 = 0xBF58476D1CE4E5B9,
                   kMix2 = 0x94D049BB133111EB;  // SplitMix64's
constexpr int64_t kCodesPerWord = sizeof(uint64_t) / sizeof(uint16_t);
static_assert(kUnit % kCodesPerWord == 0, "a unit starts with a whole word");

using u64 = uint64_t __attribute__((aligned(1), may_alias));

inline uint64_t mix(uint64_t word, uint64_t place) {
  const uint64_t h = (word ^ ((place + 1) * kGamma)) * kMix1;
  return (h ^ (h >> 32)) * kMix2;
}

}  // namespace

// checksums: zeros on entry; first_units: room for n + 1.
NARROWGATE_KERNEL(narrowgate_half_checksum_)
(int64_t n, const int64_t* counts, const unsigned char* const* halves, int64_t* first_units,
 uint64_t* checksums, int32_t threads) {
  for_units(n, counts, first_units, threads, [&](int64_t tensor, int64_t start, int64_t count) {
    const unsigned char* codes = halves[tensor] + start * static_cast<int64_t>(sizeof(uint16_t));
    const u64* words = reinterpret_cast<const u64*>(codes);
    const int64_t whole = count / kCodesPerWord, rest = count % kCodesPerWord;
    const uint64_t place = static_cast<uint64_t>(start / kCodesPerWord);
    uint64_t sum = static_cast<uint64_t>(count) * kGamma;
    for (int64_t j = 0; j < whole; ++j) sum += mix(words[j], place + static_cast<uint64_t>(j));
    if (rest) {
      uint64_t word = 0;  // filled up with zeros
      std::memcpy(&word, codes + whole * static_cast<int64_t>(sizeof word),
                  static_cast<size_t>(rest) * sizeof(uint16_t));
      sum += mix(word, place + static_cast<uint64_t>(whole));
    }
#pragma omp atomic
    checksums[tensor] += sum;
  });
}
