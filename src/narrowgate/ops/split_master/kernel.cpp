// Split FP32 masters into halves and remainders: the definition is reference.py.

#include "../_native/floats.h"
#include "../_native/units.h"

namespace {

template <typename Split>
void split_all(const unsigned char* masters, unsigned char* halves, unsigned char* remainders,
               int64_t count, int threads, const Split& split) {
  int64_t first[2];
  for_units(1, &count, first, threads, [&](int64_t, int64_t start, int64_t size) {
    const f32* __restrict master = reinterpret_cast<const f32*>(masters) + start;
    u16* __restrict half = reinterpret_cast<u16*>(halves) + start;
    i16* __restrict rest = reinterpret_cast<i16*>(remainders) + start;
    for (int64_t i = 0; i < size; ++i) {
      const Pair pair = split(master[i]);
      half[i] = pair.half;
      rest[i] = pair.remainder;
    }
  });
}

}  // namespace

NARROWGATE_KERNEL(narrowgate_split_master_)
(const unsigned char* masters, unsigned char* halves, unsigned char* remainders, int64_t count,
 int32_t format, int32_t threads) {
  if (format == kBf16) {
    split_all(masters, halves, remainders, count, threads, [](float w) { return split_bf16(w); });
  } else {
    split_all(masters, halves, remainders, count, threads, [](float w) { return split_fp16(w); });
  }
}
