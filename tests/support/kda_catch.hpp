// SPDX-License-Identifier: Apache-2.0
// Catch2 for the tests, one spelling for both majors: 2.13 (one header, Debian 12) and 3.x (many headers). Tests
// include only this file and use what the majors share, plus Approx and KDA_SKIP.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;  // 2.13 declares it globally
#elif __has_include(<catch2/catch.hpp>)
#include <catch2/catch.hpp>
#else
#error "the tests need Catch2: Debian's catch2 package, or any 3.x"
#endif

// Ends the test case without a verdict, saying why: SKIP since Catch2 3.3, a warning and a return before it.
#if defined(SKIP)
#define KDA_SKIP(reason) SKIP(reason)
#else
#define KDA_SKIP(reason)         \
  do {                           \
    WARN("skipped: " << reason); \
    return;                      \
  } while (false)
#endif
