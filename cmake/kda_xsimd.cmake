# SPDX-License-Identifier: Apache-2.0
# kda::xsimd: the folder of xsimd's headers, which kernels for vector ISAs include. Read by kda's own build and by its installed
# package. KDA_XSIMD_INCLUDE_DIR names the folder by hand; where nothing is found, kda_add_kernels() builds `scalar` only.
if(TARGET kda::xsimd)
  return()
endif()

# xsimd's own package and target serve to find the folder and no more: the package of some distributions links a library that
# it does not bring, and the version file refuses every other major, although 8.1 and all later ones will do.
set(kda_xsimd_folder "${KDA_XSIMD_INCLUDE_DIR}")
if(NOT kda_xsimd_folder)
  if(NOT TARGET xsimd)
    find_package(xsimd QUIET)
  endif()
  if(TARGET xsimd)
    get_target_property(kda_xsimd_folder xsimd INTERFACE_INCLUDE_DIRECTORIES)
  endif()
endif()
if(NOT kda_xsimd_folder)
  find_path(KDA_XSIMD_INCLUDE_DIR xsimd/xsimd.hpp DOC "Folder that holds xsimd/xsimd.hpp")
  set(kda_xsimd_folder "${KDA_XSIMD_INCLUDE_DIR}")
endif()

add_library(kda::xsimd INTERFACE IMPORTED GLOBAL)
if(kda_xsimd_folder)
  set_property(TARGET kda::xsimd PROPERTY INTERFACE_INCLUDE_DIRECTORIES "${kda_xsimd_folder}")
endif()
unset(kda_xsimd_folder)
