// Runs every kernel over named cases, to be compiled with AddressSanitizer and UBSan.
//
// What is true here: each buffer is exactly as long as the kernel may touch, starts at an address
// that no element's size divides, and is filled with random bits, with NaN and Inf and with the ends
// of every format. The sanitizers say what is out of bounds or undefined; that the numbers are right
// is checked elsewhere, but for the sums of the bits that must not change.
//
// NARROWGATE_BODY is the body under test; the file is compiled and linked once for each.

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "_native/weights.h"

struct NarrowgateAdamW {
  unsigned char* const* exp_avgs;
  unsigned char* const* exp_avg_sqs;
  unsigned char* const* steps;
  const float *advanced, *roots, *sizes;
  float keep_m, take_m, keep_v, take_v, eps, decay;
  int32_t mode;
};

struct NarrowgateSgd {
  unsigned char* const* buffers;
  float lr, momentum, decay;
  int32_t mode, decays;
};

NARROWGATE_KERNEL(narrowgate_adamw_step_)(const NarrowgateWeights*, const NarrowgateAdamW*);
NARROWGATE_KERNEL(narrowgate_sgd_step_)(const NarrowgateWeights*, const NarrowgateSgd*);
NARROWGATE_KERNEL(narrowgate_split_master_)
(const unsigned char*, unsigned char*, unsigned char*, int64_t, int32_t, int32_t);
NARROWGATE_KERNEL(narrowgate_join_master_)
(const unsigned char*, const unsigned char*, unsigned char*, int64_t, int32_t, int32_t);
NARROWGATE_KERNEL(narrowgate_half_checksum_)
(int64_t, const int64_t*, const unsigned char* const*, int64_t*, uint64_t*, int32_t);
NARROWGATE_KERNEL(narrowgate_grad_stats_)
(int64_t, const int64_t*, const unsigned char* const*, const int32_t*, int64_t*, int64_t*, double*,
 int64_t*, double*, int32_t);

namespace {

uint64_t state = 1;

uint64_t random_bits() {  // SplitMix64
  uint64_t z = state += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

enum Fill { kRandom, kOnes, kZeros };  // all bits one: a NaN in every format

struct Buffer {
  Buffer(int64_t count, int size, Fill fill) : bytes(static_cast<size_t>(count * size)) {
    // One byte more in front, so that the end of the buffer is the end of the allocation.
    base = static_cast<unsigned char*>(std::malloc(bytes + 1));
    for (size_t i = 0; i < bytes; ++i) {
      data()[i] = fill == kRandom ? static_cast<unsigned char>(random_bits())
                                  : static_cast<unsigned char>(fill == kOnes ? 0xFF : 0);
    }
  }
  Buffer(const Buffer&) = delete;
  Buffer(Buffer&& other) noexcept : base(other.base), bytes(other.bytes) { other.base = nullptr; }
  ~Buffer() { std::free(base); }
  unsigned char* data() const { return base + 1; }
  unsigned char* base;
  size_t bytes;
};

struct Lists {
  Lists(const std::vector<int64_t>& counts, int size, Fill fill) {
    for (int64_t count : counts) {
      buffers.emplace_back(count, size, fill);
      pointers.push_back(buffers.back().data());
    }
  }
  std::vector<Buffer> buffers;
  std::vector<unsigned char*> pointers;
};

struct Case {
  const char* name;
  std::vector<int64_t> counts;
  int threads;
};

int size_of(int32_t format) { return format == kFp64 ? 8 : format == kFp32 ? 4 : 2; }

void run_updates(const Case& c, Fill fill, int32_t format, int32_t grad_format) {
  const int64_t n = static_cast<int64_t>(c.counts.size());
  for (int32_t mode = 0; mode < 3; ++mode) {
    Lists params(c.counts, size_of(format), fill), grads(c.counts, size_of(grad_format), fill);
    Lists remainders(c.counts, format == kFp32 ? 0 : 2, fill);
    Lists first(c.counts, 4, fill), second(c.counts, 4, fill);
    Lists steps(std::vector<int64_t>(c.counts.size(), 1), 4, fill);
    std::vector<int32_t> formats(c.counts.size(), grad_format);
    std::vector<int64_t> units(c.counts.size() + 1), saturated(c.counts.size());
    const std::vector<float> roots(c.counts.size(), 0.03f), sizes(c.counts.size(), 0.01f);
    const NarrowgateWeights lists{n, c.counts.data(), params.pointers.data(),
                                  remainders.pointers.data(), grads.pointers.data(),
                                  formats.data(), units.data(), saturated.data(), format,
                                  c.threads, -0.5f, format == kFp16 ? 65519.996f : 3.3e38f};
    const NarrowgateAdamW adamw{first.pointers.data(), second.pointers.data(),
                                steps.pointers.data(), sizes.data(), roots.data(),
                                sizes.data(), 0.9f, 0.1f, 0.999f, 0.001f, 1e-8f, 0.99f, mode};
    NARROWGATE_JOIN(narrowgate_adamw_step_, NARROWGATE_BODY)(&lists, &adamw);
    for (int32_t decays = 0; decays < 2; ++decays) {
      const NarrowgateSgd sgd{first.pointers.data(), 0.1f, 0.9f, 0.01f, mode, decays};
      NARROWGATE_JOIN(narrowgate_sgd_step_, NARROWGATE_BODY)(&lists, &sgd);
    }
  }
}

void run_reads(const Case& c, Fill fill) {
  const int64_t n = static_cast<int64_t>(c.counts.size());
  for (int32_t format : {kFp32, kBf16, kFp16, kFp64}) {
    Lists grads(c.counts, size_of(format), fill);
    std::vector<int32_t> formats(c.counts.size(), format);
    int64_t chunks = 0, units = 0;
    for (int64_t count : c.counts) {
      chunks += (count + 1023) / 1024;
      units += units_of(count);
    }
    std::vector<int64_t> first_units(c.counts.size() + 1), first_chunks(c.counts.size() + 1);
    std::vector<double> sums(static_cast<size_t>(chunks));
    std::vector<int64_t> largest(static_cast<size_t>(units));
    std::vector<double> table(3 * c.counts.size());
    NARROWGATE_JOIN(narrowgate_grad_stats_, NARROWGATE_BODY)
    (n, c.counts.data(), grads.pointers.data(), formats.data(), first_units.data(),
     first_chunks.data(), sums.data(), largest.data(), table.data(), c.threads);
    if (size_of(format) != 2) continue;
    std::vector<uint64_t> checksums(c.counts.size());
    NARROWGATE_JOIN(narrowgate_half_checksum_, NARROWGATE_BODY)
    (n, c.counts.data(), grads.pointers.data(), first_units.data(), checksums.data(), c.threads);
  }
}

// Joins and splits each buffer, and splits what came of it again: nothing may change but NaN.
int run_splits(const Case& c, Fill fill) {
  int wrong = 0;
  for (int64_t count : c.counts) {
    for (int32_t format : {kBf16, kFp16}) {
      Buffer master(count, 4, fill), half(count, 2, kOnes), rest(count, 2, kOnes);
      NARROWGATE_JOIN(narrowgate_split_master_, NARROWGATE_BODY)
      (master.data(), half.data(), rest.data(), count, format, c.threads);
      Buffer joined(count, 4, kOnes), again(count, 2, kOnes), rest_again(count, 2, kOnes);
      NARROWGATE_JOIN(narrowgate_join_master_, NARROWGATE_BODY)
      (half.data(), rest.data(), joined.data(), count, format, c.threads);
      NARROWGATE_JOIN(narrowgate_split_master_, NARROWGATE_BODY)
      (joined.data(), again.data(), rest_again.data(), count, format, c.threads);
      wrong += std::memcmp(half.data(), again.data(), half.bytes) != 0;
      wrong += std::memcmp(rest.data(), rest_again.data(), rest.bytes) != 0;
    }
  }
  return wrong;
}

}  // namespace

int main() {
  std::vector<int64_t> small;
  for (int64_t count = 0; count <= 67; ++count) small.push_back(count);
  const Case cases[] = {
      {"no tensor", {}, 2},
      {"only empty tensors", {0, 0}, 2},
      {"every size up to a vector's and beyond", small, 1},
      {"around a tile", {kTile - 1, kTile, kTile + 1}, 1},
      {"around a row of the tree", {1023, 1024, 1025}, 1},
      {"around a unit, empty ones between", {kUnit - 1, 0, kUnit, 0, kUnit + 1}, 2},
      {"more threads than units", {3, kUnit + 3}, 16},
      {"more rows than one level of the tree holds", {1025 * 1024 + 1}, 2},
  };
  int wrong = 0;
  for (const Case& c : cases) {
    for (Fill fill : {kRandom, kOnes, kZeros}) {
      for (int32_t format : {kFp32, kBf16, kFp16}) {
        for (int32_t grad_format : {kFp32, kBf16, kFp16}) run_updates(c, fill, format, grad_format);
      }
      run_reads(c, fill);
      wrong += run_splits(c, fill);
    }
    std::printf("%s: done\n", c.name);
  }
  return wrong != 0;
}
