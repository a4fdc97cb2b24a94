// SPDX-License-Identifier: Apache-2.0
// The version of the library. Everything it declares lives in `kda::v0`, an inline namespace, so that two versions can
// be linked into one program.
#pragma once

#define KDA_VERSION_MAJOR 0
#define KDA_VERSION_MINOR 1
#define KDA_VERSION_PATCH 0

namespace kda::inline v0 {}
