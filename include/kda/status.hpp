// SPDX-License-Identifier: Apache-2.0
// What a call answers. Everything is checked before anything is written, so a refusal leaves all memory as it was.
#pragma once
#include "config.hpp"

namespace kda::inline v0 {

enum class error {
  none,
  null_pointer,         ///< data is null although the shape is not empty
  wrong_shape,          ///< an extent is negative, or does not fit the other arguments
  wrong_stride,         ///< negative, or not 1 between channels, or elements overlap or have no address
  overlap,              ///< an output shares memory with an input or with another output
  wrong_value,          ///< a number outside its range: lower_bound, eps, scale
  wrong_offsets,        ///< offsets that decrease, start below 0 or end past the tokens
  slot_out_of_range,    ///< a slot id past the pool
  slot_conflict,        ///< a slot stored twice, or loaded by one sequence and stored by another
  workspace_too_small,  ///< fewer bytes than workspace_bytes() asks for
  buffer_too_small,     ///< fewer bytes than a saved state has: the buffer of save_state, or a truncated one
  wrong_buffer,         ///< no saved state of these dimensions, layouts and types, or a damaged one
};

/// Result of a call: `if (!s) log(s.argument, kda::message(s.what));`
struct [[nodiscard]] status {
  error what = error::none;
  const char* argument = "";  ///< name of the argument at fault, as the call spells it

  KDA_INLINE constexpr explicit operator bool() const { return what == error::none; }
};

/// The error in words.
[[nodiscard]] KDA_INLINE constexpr const char* message(error e) {
  switch (e) {
    case error::none:
      return "ok";
    case error::null_pointer:
      return "is null although its shape is not empty";
    case error::wrong_shape:
      return "has a shape that does not fit the other arguments";
    case error::wrong_stride:
      return "has a negative stride, a channel stride other than 1, or elements that overlap or have no address";
    case error::overlap:
      return "shares memory with another argument";
    case error::wrong_value:
      return "is outside its range";
    case error::wrong_offsets:
      return "must rise from at least 0 to at most the number of tokens";
    case error::slot_out_of_range:
      return "names a slot past the pool";
    case error::slot_conflict:
      return "has a slot that two sequences would write, or one write and another read";
    case error::workspace_too_small:
      return "has fewer bytes than workspace_bytes() asks for";
    case error::buffer_too_small:
      return "has fewer bytes than the saved state";
    case error::wrong_buffer:
      return "is not as in a saved state of these dimensions, layouts and types, or is damaged";
  }
  return "unknown error";
}

}  // namespace kda::inline v0
