// SPDX-License-Identifier: Apache-2.0
// KDA_EXPORT_KERNELS: the function table of this translation unit's ISA, as a C symbol that the dispatcher's list
// names.
#pragma once
#include "dispatch.hpp"
#include "kernels.hpp"

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

template <class Spec> consteval table<Spec> make_table() {
  using k = kernels<Spec>;
  table<Spec> t{};
  t.isa = k::isa;
  t.prefill = {&k::prefill};
  t.decode = {&k::decode};
  if constexpr (detail::traits<Spec>::conv::present) t.conv = {&k::conv};
  if constexpr (k::has_gate) t.gate = {&k::gate};
  if constexpr (k::has_beta) t.beta = {&k::beta};
  t.l2norm = {&k::l2norm};
  if constexpr (detail::traits<Spec>::norm::present) t.norm = {&k::norm};
  if constexpr (detail::has_step<Spec>) t.step = {&k::step};
  return t;
}

template <class... Specs> struct exported { static constexpr tables<Specs...> value{make_table<Specs>()...}; };

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE

/// Defines the tables of this file's ISA for the specs that follow, under the name that KDA_DECLARE_KERNELS(NAME, ...)
/// lists.
#define KDA_EXPORT_KERNELS(NAME, ...)          \
  KDA_SAME_SPECS(NAME, __VA_ARGS__)            \
  extern "C" const void* KDA_JOIN_ISA(NAME)(); \
  extern "C" const void* KDA_JOIN_ISA(NAME)() { return &kda::KDA_ISA_NAMESPACE::exported<__VA_ARGS__>::value; }
#define KDA_JOIN_EXPANDED(a, b) KDA_JOIN_OF(a, b)
#define KDA_JOIN_ISA(NAME) KDA_JOIN_EXPANDED(NAME, KDA_ISA)
