# SPDX-License-Identifier: Apache-2.0
# kda_add_kernels(): kernels of one source file, compiled once for each ISA, and the list that kda::select() chooses from.
#
#   kda_add_kernels(<target>
#     NAME <name>...            # what the source exports: KDA_EXPORT_KERNELS(<name>, ...); several if it exports several
#     SOURCE <file.cpp>
#     [ISAS <isa>...]           # of x86-64: scalar, avx2, avx512, avx512_bf16; of AArch64: scalar, neon; left out: all that this
#                               # architecture and compiler can build
#     [DEFINITIONS <macro>...]) # for these kernels only
#
# The source is compiled with <target>'s own include folders, definitions and options, and with the ISA's flags and
# KDA_TARGET_<ISA>=1 on top. <target> gets the objects, one baseline source per name that lists them, and kda::kda.

# The ISAs that this architecture can have, best first; kda::select() takes the first that the CPU has.
function(kda_isas_of_architecture result)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    set(${result} avx512_bf16 avx512 avx2 scalar PARENT_SCOPE)
  elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64|ARM64)$")
    set(${result} neon scalar PARENT_SCOPE)
  else()
    set(${result} scalar PARENT_SCOPE)
  endif()
endfunction()

function(kda_isa_flags isa result)
  set(scalar "")
  set(neon "") # every AArch64 has it
  set(avx2 -mavx2 -mfma -mf16c)
  set(avx512 ${avx2} -mavx512f -mavx512cd -mavx512bw -mavx512dq -mavx512vl) # cd: newer xsimd want it with dq
  set(avx512_bf16 ${avx512} -mavx512bf16)
  set(${result} ${${isa}} PARENT_SCOPE)
endfunction()

# Why kernels for an ISA cannot be built here; empty if they can.
function(kda_isa_obstacle isa result)
  set(known avx512_bf16 avx512 avx2 neon scalar)
  kda_isas_of_architecture(here)
  kda_isa_flags("${isa}" flags)
  list(JOIN flags " " flags)
  set(obstacle "")
  if(NOT isa IN_LIST known)
    list(JOIN known ", " known)
    set(obstacle "unknown ISA ${isa} (known: ${known})")
  elseif(NOT isa IN_LIST here)
    set(obstacle "ISA ${isa} is not one of ${CMAKE_SYSTEM_PROCESSOR}")
  elseif(NOT isa STREQUAL scalar)
    include(CheckCXXSourceCompiles)
    set(CMAKE_REQUIRED_FLAGS "${flags}")
    set(CMAKE_REQUIRED_QUIET ON)
    set(condition 1)
    if(isa STREQUAL neon)
      set(condition "defined(__aarch64__) && defined(__ARM_NEON) && !defined(__AARCH64EB__)")
    endif()
    check_cxx_source_compiles("#if !(${condition})\n#error\n#endif\nint main() {}" KDA_COMPILER_BUILDS_${isa})
    get_target_property(xsimd kda::xsimd INTERFACE_INCLUDE_DIRECTORIES)
    if(NOT KDA_COMPILER_BUILDS_${isa})
      set(obstacle "the compiler does not build for ISA ${isa}, flags: ${flags}")
    elseif(NOT xsimd)
      set(obstacle "ISA ${isa} needs xsimd's headers (Debian: libxsimd-dev), and they were not found; KDA_XSIMD_INCLUDE_DIR names their folder")
    endif()
  endif()
  set(${result} "${obstacle}" PARENT_SCOPE)
endfunction()

# All that can be built here, best first.
function(kda_available_isas result)
  kda_isas_of_architecture(isas)
  set(available "")
  foreach(isa IN LISTS isas)
    kda_isa_obstacle("${isa}" obstacle)
    if(NOT obstacle)
      list(APPEND available "${isa}")
    endif()
  endforeach()
  set(${result} ${available} PARENT_SCOPE)
endfunction()

# Adds sources to a target, compiled as if they were its own and yet in a library of their own, so that they can have flags of
# their own. PIC is copied now, since that property cannot be asked for later.
function(kda_add_objects target library)
  add_library(${library} OBJECT ${ARGN})
  target_link_libraries(${library} PRIVATE kda::kda)
  target_include_directories(${library} PRIVATE "$<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>")
  target_compile_definitions(${library} PRIVATE "$<TARGET_PROPERTY:${target},COMPILE_DEFINITIONS>")
  target_compile_options(${library} PRIVATE "$<TARGET_PROPERTY:${target},COMPILE_OPTIONS>")
  get_target_property(type ${target} TYPE)
  get_target_property(position_independent ${target} POSITION_INDEPENDENT_CODE)
  if(position_independent OR type MATCHES "^(SHARED|MODULE)_LIBRARY$")
    set_target_properties(${library} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  endif()
  target_sources(${target} PRIVATE "$<TARGET_OBJECTS:${library}>")
endfunction()

function(kda_add_kernels target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "SOURCE" "NAME;ISAS;DEFINITIONS")
  set(mistake "")
  if(arg_UNPARSED_ARGUMENTS)
    set(mistake "unknown argument ${arg_UNPARSED_ARGUMENTS}")
  elseif(NOT TARGET ${target})
    set(mistake "no such target")
  elseif(NOT arg_NAME OR NOT arg_SOURCE)
    set(mistake "NAME and SOURCE are needed")
  elseif("ISAS" IN_LIST arg_KEYWORDS_MISSING_VALUES)
    set(mistake "ISAS is empty; leave it out for all that can be built here")
  endif()
  foreach(isa IN LISTS arg_ISAS)
    if(NOT mistake)
      kda_isa_obstacle("${isa}" mistake)
    endif()
  endforeach()
  if(mistake)
    message(FATAL_ERROR "kda_add_kernels(${target} ...): ${mistake}")
  endif()

  if(arg_ISAS)
    kda_isas_of_architecture(isas)
    foreach(isa IN LISTS isas)
      if(NOT isa IN_LIST arg_ISAS)
        list(REMOVE_ITEM isas "${isa}")
      endif()
    endforeach()
  else()
    kda_available_isas(isas)
  endif()

  list(GET arg_NAME 0 first_name)
  foreach(isa IN LISTS isas)
    set(library ${target}_${first_name}_${isa})
    string(TOUPPER "${isa}" macro_suffix)
    kda_isa_flags("${isa}" flags)
    kda_add_objects(${target} ${library} "${arg_SOURCE}")
    target_compile_options(${library} PRIVATE ${flags})
    target_compile_definitions(${library} PRIVATE KDA_TARGET_${macro_suffix}=1 ${arg_DEFINITIONS})
    set_property(TARGET ${target} APPEND PROPERTY KDA_KERNEL_LIBRARIES ${library})
  endforeach()

  set(lists "")
  foreach(name IN LISTS arg_NAME)
    set(declarations "")
    set(entries "")
    foreach(isa IN LISTS isas)
      string(APPEND declarations "extern \"C\" const void* ${name}_${isa}();\n")
      string(APPEND entries "{\"${isa}\", ${name}_${isa}}, ")
    endforeach()
    set(list_source "${CMAKE_CURRENT_BINARY_DIR}/${target}_kernels/${name}_built.cpp")
    file(CONFIGURE OUTPUT "${list_source}" @ONLY CONTENT [[
// Generated by kda_add_kernels(): the ISAs that @name@ was built for, best first.
#include <kda/dispatch.hpp>

@declarations@
extern "C" {
extern const kda::built_kernels @name@_built[];
const kda::built_kernels @name@_built[] = {@entries@{nullptr, nullptr}};
}
]])
    list(APPEND lists "${list_source}")
  endforeach()
  kda_add_objects(${target} ${target}_${first_name}_built ${lists})

  # As target_link_libraries() would, but whichever of its two signatures the target's owner uses.
  get_target_property(linked ${target} LINK_LIBRARIES)
  if(NOT "kda::kda" IN_LIST linked)
    set_property(TARGET ${target} APPEND PROPERTY LINK_LIBRARIES kda::kda)
  endif()
endfunction()
