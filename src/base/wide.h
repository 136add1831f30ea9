/* Compiles a loop for several instruction sets; the one the CPU has is picked when the program is
 * loaded. There is one only under ThreadSanitizer, which has not started when the picking happens
 * and would crash, and with clang before 18, which mixes up the static functions of files. */
#ifndef CUP_BASE_WIDE_H
#define CUP_BASE_WIDE_H

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif

#if !defined(__x86_64__) || defined(__SANITIZE_THREAD__) ||                                        \
    (defined(__clang__) && __clang_major__ < 18)
#define CUP__WIDE
#elif defined(__clang__)
#define CUP__WIDE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CUP__WIDE                                                                                  \
    __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), optimize("O3")))
#endif

#endif
