# SPDX-License-Identifier: Apache-2.0
#
# How everything is compiled, sanitizers and CUDA included: for the whole, and for the project of the
# device run (tests/gpu). Sets HPS_CUDA_FOUND; hps_flags is what every library links.
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH HPS_ROOT)

set(HPS_CUDA AUTO CACHE STRING "GPUs: ON, OFF, or AUTO (with CUDA >= 12.8 if that is found)")
set_property(CACHE HPS_CUDA PROPERTY STRINGS AUTO ON OFF)
option(HPS_ASAN "AddressSanitizer and UBSan" OFF)
option(HPS_TSAN "ThreadSanitizer" OFF)
option(HPS_FUZZ "libFuzzer targets (clang)" OFF)
option(HPS_WERROR "Warnings are errors" ON)

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_CXX_STANDARD 17)
if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()

add_library(hps_flags INTERFACE)
target_include_directories(hps_flags INTERFACE ${HPS_ROOT})
target_compile_definitions(hps_flags INTERFACE _GNU_SOURCE)
# A product is rounded before it is added to something, on every CPU and GPU: sums of rows have the same
# bits wherever they are made.
target_compile_options(hps_flags INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-ffp-contract=off>)
target_compile_options(hps_flags INTERFACE
    $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes
    -Wmissing-prototypes $<$<BOOL:${HPS_WERROR}>:-Werror> -fno-omit-frame-pointer -fstack-protector-strong>
    # RocksDB's classes are not asked what they are, and nothing is thrown through C.
    $<$<COMPILE_LANGUAGE:CXX>:-std=c++17 -Wall -Wextra -Wconversion -Wshadow $<$<BOOL:${HPS_WERROR}>:-Werror> -fno-exceptions -fno-rtti
    -fno-omit-frame-pointer -fstack-protector-strong>)
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
    target_compile_definitions(hps_flags INTERFACE HPS_DEBUG)
endif()
# With the places of their variables in the debug information, these files take two to four times as long to compile.
set_property(SOURCE ${HPS_ROOT}/base/row_kernel_avx2.c ${HPS_ROOT}/base/row_kernel_avx512.c ${HPS_ROOT}/base/row_kernel_scalar.c
    APPEND PROPERTY COMPILE_OPTIONS -fno-var-tracking)
# Each program contains the runtime of AddressSanitizer; mold links it in a third of the time. Only there: mold 1.10 can put
# RELRO onto a page that is not mapped if all thread-local data has an alignment below 8.
find_program(HPS_MOLD mold)
mark_as_advanced(HPS_MOLD)
if(HPS_MOLD AND HPS_ASAN)
    add_link_options(-fuse-ld=mold)
endif()
if(HPS_ASAN)
    # gcc takes the branch that checks a pointer for NULL for one that writes through NULL.
    add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined
        $<$<C_COMPILER_ID:GNU>:-Wno-stringop-overflow>)
    add_link_options(-fsanitize=address,undefined)
    # gcc puts what is to lie at multiples of 64 bytes of a stack that is checked after return anywhere.
    if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
        add_link_options(-static-libasan) # calls into a shared one, and its thread-locals, cost more
        set_property(SOURCE ${HPS_ROOT}/base/row_kernel_avx2.c ${HPS_ROOT}/base/row_kernel_avx512.c
            ${HPS_ROOT}/backends/host/kernel.c APPEND PROPERTY COMPILE_OPTIONS --param=asan-use-after-return=0)
        # Calls instead of inline checks: these files compile in two thirds of the time.
        set_property(SOURCE ${HPS_ROOT}/base/row_kernel_avx2.c ${HPS_ROOT}/base/row_kernel_avx512.c
            ${HPS_ROOT}/base/row_kernel_scalar.c APPEND PROPERTY COMPILE_OPTIONS
            --param=asan-instrumentation-with-call-threshold=0)
    endif()
endif()
if(HPS_TSAN)
    # Without -fno-builtin-memcpy gcc copies rows inline and uninstrumented: races go unseen.
    add_compile_options(-fsanitize=thread -fno-builtin-memcpy)
    add_compile_definitions(HPS_TSAN)
    add_link_options(-fsanitize=thread)
    # librdkafka's threads and locks, which ThreadSanitizer would not see.
    add_library(hps_tsan_threads SHARED ${HPS_ROOT}/tests/tsan/threads.c)
    target_link_libraries(hps_flags INTERFACE hps_tsan_threads)
endif()
if(HPS_FUZZ)
    # What was reached is printed from LLVM's own counters: libFuzzer knows edges, not lines.
    set(hps_fuzz_options -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
        -fprofile-instr-generate -fcoverage-mapping)
    add_compile_options(${hps_fuzz_options})
    add_link_options(${hps_fuzz_options})
endif()

# ---- CUDA: only *.cu of cache/, tests/gpu/ and bench/gpu/; everything else is C --------------------
# AUTO goes without where nvcc is missing or too old, and in sanitizer builds, which have the simulated
# device: nvcc has no sanitizers.
set(HPS_CUDA_VERSION_MIN 12.8) # __nv_atomic_*
set(HPS_CUDA_FOUND OFF)
if(NOT HPS_CUDA STREQUAL "OFF" AND NOT HPS_ASAN AND NOT HPS_TSAN AND NOT HPS_FUZZ)
    if(NOT CMAKE_CUDA_ARCHITECTURES)
        # Machine code for these, and for later ones what the driver compiles from the last.
        set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)
    endif()
    include(CheckLanguage)
    if(NOT CMAKE_CUDA_COMPILER)
        unset(CMAKE_CUDA_COMPILER CACHE) # it may have been installed since the last time
    endif()
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
        enable_language(CUDA)
        if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL HPS_CUDA_VERSION_MIN)
            set(HPS_CUDA_FOUND ON)
        else()
            message(STATUS "CUDA ${CMAKE_CUDA_COMPILER_VERSION} is older than ${HPS_CUDA_VERSION_MIN}")
        endif()
    endif()
endif()
if(HPS_CUDA STREQUAL "ON" AND NOT HPS_CUDA_FOUND)
    message(FATAL_ERROR "HPS_CUDA=ON, but there is no nvcc of CUDA ${HPS_CUDA_VERSION_MIN} or later with "
        "a C++ compiler for the host (sanitizer builds have none)")
endif()
if(HPS_CUDA_FOUND)
    message(STATUS "CUDA ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static) # so that programs start where there is no driver
    target_compile_definitions(hps_flags INTERFACE HPS_CUDA)
    target_compile_options(hps_flags INTERFACE
        $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false $<$<BOOL:${HPS_WERROR}>:-Werror=all-warnings>
        -Xcompiler=-Wall,-Wextra,-Wconversion$<$<BOOL:${HPS_WERROR}>:$<COMMA>-Werror>,-fno-omit-frame-pointer,-ffp-contract=off>)
else()
    message(STATUS "without CUDA: the simulated device only")
endif()

# What a library with cache/ in it needs for devices: its .cu files, and those of the folders given.
function(hps_device_sources target)
    if(HPS_TSAN)
        # The simulated device's own locks must order nothing (cache/device/sim/sanitize.h).
        set(sim ${HPS_ROOT}/cache/device/sim)
        set_source_files_properties(${sim}/fiber.c ${sim}/simt.c ${sim}/memory.c ${sim}/device.c
            PROPERTIES COMPILE_OPTIONS -fno-sanitize=thread)
    endif()
    if(NOT HPS_CUDA_FOUND)
        return()
    endif()
    string(REGEX REPLACE "([0-9]+)(-real|-virtual)?" "sm_\\1" processors "${CMAKE_CUDA_ARCHITECTURES}")
    string(REPLACE ";" ", " processors "${processors}")
    string(REGEX MATCH "^[0-9]+\\.[0-9]+" version "${CMAKE_CUDA_COMPILER_VERSION}")
    set_source_files_properties(${HPS_ROOT}/cache/device/cuda.cu PROPERTIES COMPILE_DEFINITIONS
        "HPS_CUDA_PROCESSORS=\"${processors}\";HPS_CUDA_VERSION=\"${version}\"")
    foreach(folder cache ${ARGN})
        file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${HPS_ROOT}/${folder}/*.cu)
        target_sources(${target} PRIVATE ${sources})
    endforeach()
endfunction()
