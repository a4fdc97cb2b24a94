// SPDX-License-Identifier: Apache-2.0
// A sequence's state in a plain buffer, for preemption, migration and prefix caches on disk: header, recurrent state,
// convolution window; bits as they are. A buffer that is not what the caller expects is refused before anything is
// written.
//
//   bytes   header, in the byte order of the machine that saved
//    0- 7   "kdaState"
//    8-15   0x01020304: tells the byte order; version
//   16-31   type (4 float, 2 bf16, 3 f16) and layout of the recurrent state, then of the window (0, 0: none was saved);
//           a code more is no new version: what a reader does not expect it refuses
//   32-71   HV, K, V, C, columns of the window
//   72-95   position, bytes of the payload, checksum of all that stands before and behind it
//   96-     payload: [HV, K, V] or [HV, V, K]; then [columns, C] or [C, columns], without gaps
#pragma once
#include "args.hpp"
#include "check.hpp"

namespace kda::inline v0 {

namespace detail {
struct saved_state_header {
  char magic[8] = {'k', 'd', 'a', 'S', 't', 'a', 't', 'e'};
  std::uint32_t byte_order = 0x01020304, version = 1;
  std::uint32_t state_type = 0, state_layout = 0, window_type = 0, window_layout = 0;
  std::int64_t value_heads = 0, key_dim = 0, value_dim = 0, channels = 0, columns = 0;
  std::int64_t position = 0, payload = 0;
  std::uint64_t checksum = 0;
};
static_assert(sizeof(saved_state_header) == 96, "kda: a header without gaps");
template <class T> consteval std::uint32_t type_code() {
  return std::is_same_v<T, float> ? 4 : std::is_same_v<T, bf16> ? 2 : 3;
}

struct no_windows {};
template <class Spec>
using window_pool =
    std::conditional_t<traits<Spec>::conv::present, conv_pool<typename traits<Spec>::io::qkv>, no_windows>;
}  // namespace detail

/// The state of one sequence in its pools: arguments of saved_state_bytes, save_state and restore_state.
template <class Spec> struct saved_state_args {
  std::ptrdiff_t value_heads = 0, key_dim = 0, value_dim = 0;  ///< HV, K, V
  std::ptrdiff_t channels = 0, width = 0;                      ///< C, W; only with conv_states
  std::int64_t slot = 0;                                       ///< of both pools
  state_pool<typename detail::traits<Spec>::state::type> states{};
  detail::window_pool<Spec> conv_states{};  ///< left out: the recurrent state alone
};

}  // namespace kda::inline v0

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

template <class Spec> KDA_INLINE bool has_windows(const saved_state_args<Spec>& a) {
  if constexpr (detail::traits<Spec>::conv::present)
    return a.conv_states.data != nullptr || a.conv_states.slots != 0;
  else
    return false;
}

/// What is saved for these arguments, all but position and checksum.
template <class Spec> KDA_NOINLINE detail::saved_state_header header_of(const saved_state_args<Spec>& a) {
  using t = detail::traits<Spec>;
  detail::saved_state_header h;
  h.state_type = detail::type_code<typename t::state::type>();
  h.state_layout = static_cast<std::uint32_t>(t::state::order);
  h.value_heads = a.value_heads, h.key_dim = a.key_dim, h.value_dim = a.value_dim;
  h.payload = times(times(times(a.value_heads, a.key_dim), a.value_dim), sizeof(typename t::state::type));
  if constexpr (t::conv::present)
    if (has_windows(a)) {
      h.window_type = detail::type_code<typename t::io::qkv>();
      h.window_layout = static_cast<std::uint32_t>(t::conv::order);
      h.channels = a.channels, h.columns = spelt_out<t::conv::order>(a.conv_states, a.channels, a.width).columns;
      h.payload = plus(h.payload, times(times(h.channels, h.columns), sizeof(typename t::io::qkv)));
    }
  return h;
}

/// Of `bytes` bytes at any address, eight at a time. Each step is a bijection of its word and of the sum before it: a
/// change within one word always shows, any other with odds of 2^64 to 1.
KDA_NOINLINE inline std::uint64_t checksum(const char* p, std::ptrdiff_t bytes, std::uint64_t sum) {
  const auto add = [&](std::uint64_t word) KDA_INLINE_LAMBDA {
    sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
    sum = sum << 29 | sum >> 35;
  };
  std::uint64_t word = 0;
  for (; bytes >= 8; p += 8, bytes -= 8) {
    __builtin_memcpy(&word, p, 8);
    add(word);
  }
  word = 0;
  __builtin_memcpy(&word, p, static_cast<std::size_t>(bytes));
  add(word);
  return sum;
}
KDA_INLINE std::uint64_t checksum(const detail::saved_state_header& h, const char* payload) {
  const auto before = static_cast<std::ptrdiff_t>(offsetof(detail::saved_state_header, checksum));
  return checksum(payload, h.payload, checksum(reinterpret_cast<const char*>(&h), before, 0));
}

/// f(elements, n) for the pieces of the slot in the order of the payload.
template <class Spec, class F> KDA_INLINE void for_each_piece(const saved_state_args<Spec>& a, const F& f) {
  using t = detail::traits<Spec>;
  const auto slot = static_cast<std::ptrdiff_t>(a.slot), state = a.value_heads * a.key_dim * a.value_dim;
  f(a.states.data + slot * slot_stride(a.states, state), state);
  if constexpr (t::conv::present)
    if (has_windows(a)) {
      constexpr bool channel_major = t::conv::order == conv_state::channel_major;
      const auto p = spelt_out<t::conv::order>(a.conv_states, a.channels, a.width);
      const std::ptrdiff_t rows = channel_major ? a.channels : p.columns, row = channel_major ? p.columns : a.channels;
      for (std::ptrdiff_t r = 0; r < rows; ++r) f(p.data + slot * p.slot_stride + r * p.stride, row);
    }
}

/// Bytes that a state of these dimensions takes when it is saved; pools may be empty but for conv_states.columns.
template <class Spec> [[nodiscard]] KDA_INLINE std::ptrdiff_t saved_state_bytes(const saved_state_args<Spec>& a) {
  return plus(sizeof(detail::saved_state_header), header_of(a).payload);
}

/// Everything but what stands in the buffer, and its size.
template <class Spec> KDA_NOINLINE status check(const saved_state_args<Spec>& a, const void* buffer) {
  using t = detail::traits<Spec>;
  using T = typename t::state::type;
  const std::ptrdiff_t K = a.key_dim, V = a.value_dim, state = times(times(a.value_heads, K), V);
  checker c;
  c.require(a.value_heads >= 1, error::wrong_shape, "value_heads");
  c.require(K >= 1 && K <= detail::max_key_dim && (t::dims::key == 0 || K == t::dims::key), error::wrong_shape,
            "key_dim");
  c.require(V >= 1 && (t::dims::value == 0 || V == t::dims::value) && addressable<T>(state), error::wrong_shape,
            "value_dim");
  const auto pool = [&](const auto& p) {
    c.require(a.slot >= p.first_slot && a.slot < p.slots, error::slot_out_of_range, "slot");
  };
  c.pool(a.states.data, a.states.slots, slot_stride(a.states, state), a.states.first_slot, state, checker::states);
  pool(a.states);
  std::ptrdiff_t window = 0;
  if constexpr (t::conv::present)
    if (has_windows(a)) {
      c.require(a.channels >= 1 && addressable<typename t::io::qkv>(a.channels), error::wrong_shape, "channels");
      c.require(a.width >= 2 && a.width <= 4, error::wrong_shape, "width");
      if (!c.result()) return c.result();
      const auto p = spelt_out<t::conv::order>(a.conv_states, a.channels, a.width);
      window = c.pool<t::conv::order>(p, a.channels, a.width, {}, 0, checker::conv_states);
      pool(p);
    }
  c.require(buffer != nullptr, error::null_pointer, "buffer");
  if (!c.result()) return c.result();

  region windows;
  const auto slot = static_cast<std::ptrdiff_t>(a.slot);
  if constexpr (t::conv::present)
    if (has_windows(a)) {
      auto p = spelt_out<t::conv::order>(a.conv_states, a.channels, a.width);
      p.data += slot * p.slot_stride, p.slots = 1;
      windows = region_of_windows<t::conv::order>(p, a.channels, window);
    }
  const written all[] = {
      {region_of_slots(a.states.data + slot * slot_stride(a.states, state), 1, state, state), "states.data"},
      {windows, "conv_states.data"},
      {region_of(buffer, saved_state_bytes(a)), "buffer"}};
  c.apart(all);
  return c.result();
}

/// Saves the slot's state, of a sequence that has seen `position` tokens, into saved_state_bytes() bytes of any
/// alignment. A refusal has written nothing.
template <class Spec>
status save_state(const saved_state_args<Spec>& a, std::int64_t position, void* buffer, std::ptrdiff_t bytes) {
  if (const status s = check(a, buffer); !s) return s;
  if (position < 0) return {error::wrong_value, "position"};
  if (bytes < saved_state_bytes(a)) return {error::buffer_too_small, "bytes"};
  detail::saved_state_header h = header_of(a);
  h.position = position;
  char* const payload = static_cast<char*>(buffer) + sizeof h;
  char* to = payload;
  for_each_piece(a, [&](const auto* piece, std::ptrdiff_t n) KDA_INLINE_LAMBDA {
    const std::size_t size = static_cast<std::size_t>(n) * sizeof *piece;
    __builtin_memcpy(to, piece, size);
    to += size;
  });
  h.checksum = checksum(h, payload);
  __builtin_memcpy(buffer, &h, sizeof h);
  return {};
}

/// Restores what save_state() has saved into the slot, and tells its position. The buffer is refused if it has another
/// version, byte order, dimension, layout or type than these arguments, is damaged or cut short; a refusal names the
/// field and has written nothing.
template <class Spec>
status restore_state(const saved_state_args<Spec>& a, std::int64_t& position, const void* buffer,
                     std::ptrdiff_t bytes) {
  if (const status s = check(a, buffer); !s) return s;
  const detail::saved_state_header want = header_of(a);
  detail::saved_state_header h;
  if (bytes < static_cast<std::ptrdiff_t>(sizeof h)) return {error::buffer_too_small, "bytes"};
  __builtin_memcpy(&h, buffer, sizeof h);
  const char* from = static_cast<const char*>(buffer) + sizeof h;
  checker c;
  const auto same = [&](auto got, auto wanted, const char* field) {
    c.require(got == wanted, error::wrong_buffer, field);
  };
  for (int i = 0; i < 8; ++i) same(h.magic[i], want.magic[i], "buffer.magic");
  same(h.byte_order, want.byte_order, "buffer.byte_order");
  same(h.version, want.version, "buffer.version");
  same(h.state_type, want.state_type, "buffer.state_type");
  same(h.state_layout, want.state_layout, "buffer.state_layout");
  same(h.window_type, want.window_type, "buffer.conv_type");
  same(h.window_layout, want.window_layout, "buffer.conv_layout");
  same(h.value_heads, want.value_heads, "buffer.value_heads");
  same(h.key_dim, want.key_dim, "buffer.key_dim");
  same(h.value_dim, want.value_dim, "buffer.value_dim");
  same(h.channels, want.channels, "buffer.channels");
  same(h.columns, want.columns, "buffer.columns");
  same(h.payload, want.payload, "buffer.payload");
  c.require(bytes >= saved_state_bytes(a), error::buffer_too_small, "bytes");
  if (!c.result()) return c.result();
  same(h.checksum, checksum(h, from), "buffer.checksum");
  if (!c.result()) return c.result();
  position = h.position;
  for_each_piece(a, [&](auto* piece, std::ptrdiff_t n) KDA_INLINE_LAMBDA {
    const std::size_t size = static_cast<std::size_t>(n) * sizeof *piece;
    __builtin_memcpy(static_cast<void*>(piece), from, size);
    from += size;
  });
  return {};
}

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
