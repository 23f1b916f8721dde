// What every optimizer kernel does around its own arithmetic: read a weight, store a weight.
//
// What is true here: a tile of weights and gradients is widened to FP32, updated, narrowed and
// written. A split weight past the limit is set to it with its sign, a NaN becomes the canonical
// NaN; both count as saturated. An FP32 weight is stored as it is, and counts if it is not finite.
#pragma once

#include "floats.h"
#include "units.h"

// The lists of one call; _native/__init__.py has the same fields in the same order.
struct NarrowgateWeights {
  int64_t n;                   // tensors
  const int64_t* counts;       // elements of each
  unsigned char* const* params;
  unsigned char* const* remainders;  // beside 16-bit parameters
  const unsigned char* const* grads;
  const int32_t* grad_formats;
  int64_t* first_units;        // room for n + 1
  int64_t* saturated;          // out: elements of each tensor; zeros on entry
  int32_t format;              // of all parameters
  int32_t threads;
  float grad_mult;             // negative to go up the gradient
  float limit;                 // largest magnitude that a parameter can hold
};

namespace {

inline void load_grads(const unsigned char* grads, int32_t format, int64_t start, int count,
                       float mult, float* __restrict out) {
  if (format == kFp32) {
    const f32* __restrict from = reinterpret_cast<const f32*>(grads) + start;
    for (int i = 0; i < count; ++i) out[i] = from[i] * mult;
  } else if (format == kBf16) {
    const u16* __restrict from = reinterpret_cast<const u16*>(grads) + start;
    for (int i = 0; i < count; ++i) out[i] = widen_bf16(from[i]) * mult;
  } else {
    const u16* __restrict from = reinterpret_cast<const u16*>(grads) + start;
    for (int i = 0; i < count; ++i) out[i] = widen_fp16(from[i]) * mult;
  }
}

inline void load_weights(const NarrowgateWeights& lists, int64_t tensor, int64_t start, int count,
                         float* __restrict out) {
  if (lists.format == kFp32) {
    const f32* __restrict from = reinterpret_cast<const f32*>(lists.params[tensor]) + start;
    for (int i = 0; i < count; ++i) out[i] = from[i];
    return;
  }
  const u16* __restrict half = reinterpret_cast<const u16*>(lists.params[tensor]) + start;
  const i16* __restrict rest = reinterpret_cast<const i16*>(lists.remainders[tensor]) + start;
  if (lists.format == kBf16) {
    for (int i = 0; i < count; ++i) out[i] = join_bf16(half[i], rest[i]);
  } else {
    for (int i = 0; i < count; ++i) out[i] = join_fp16(half[i], rest[i]);
  }
}

// Gives the number of saturated elements.
inline int store_weights(const NarrowgateWeights& lists, int64_t tensor, int64_t start, int count,
                         const float* __restrict weights) {
  const float limit = lists.limit;
  int outside = 0;
  if (lists.format == kFp32) {
    f32* __restrict to = reinterpret_cast<f32*>(lists.params[tensor]) + start;
    for (int i = 0; i < count; ++i) {
      to[i] = weights[i];
      outside += !(__builtin_fabsf(weights[i]) <= limit);
    }
    return outside;
  }
  u16* __restrict half = reinterpret_cast<u16*>(lists.params[tensor]) + start;
  i16* __restrict rest = reinterpret_cast<i16*>(lists.remainders[tensor]) + start;
  const auto store = [&](auto split) {
    for (int i = 0; i < count; ++i) {
      float w = weights[i];
      outside += !(__builtin_fabsf(w) <= limit);
      w = w > limit ? limit : w;  // a NaN passes both
      w = w < -limit ? -limit : w;
      const Pair pair = split(w);
      half[i] = pair.half;
      rest[i] = pair.remainder;
    }
  };
  if (lists.format == kBf16) {
    store([](float w) { return split_bf16(w); });
  } else {
    store([](float w) { return split_fp16(w); });
  }
  return outside;
}

// Calls update(tensor, start, count, weights, grads) for every tile; grads are multiplied.
template <typename Update>
void walk(const NarrowgateWeights& lists, const Update& update) {
  for_units(lists.n, lists.counts, lists.first_units, lists.threads,
            [&](int64_t tensor, int64_t start, int64_t count) {
              float weights[kTile], grads[kTile];
              int64_t outside = 0;
              for (int64_t at = start; at < start + count; at += kTile) {
                const int64_t left = start + count - at;
                const int size = static_cast<int>(left < kTile ? left : kTile);
                load_grads(lists.grads[tensor], lists.grad_formats[tensor], at, size,
                           lists.grad_mult, grads);
                load_weights(lists, tensor, at, size, weights);
                update(tensor, at, size, weights, grads);
                outside += store_weights(lists, tensor, at, size, weights);
              }
              if (outside) {
#pragma omp atomic
                lists.saturated[tensor] += outside;
              }
            });
}

}  // namespace
