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

/* CUP__WIDE: as it stands, so that every machine gives the same bits. CUP__FUSED: a multiplication
 * and an addition may become one, which takes a third off a polynomial; the functions it calls must
 * be CUP__IN_LOOP, because the compiler does not inline what was compiled by other rules. */
#define CUP__IN_LOOP static inline __attribute__((always_inline))

#if !defined(__x86_64__) || defined(__SANITIZE_THREAD__) ||                                        \
    (defined(__clang__) && __clang_major__ < 18)
#define CUP__WIDE
#define CUP__FUSED
#elif defined(__clang__)
#define CUP__WIDE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define CUP__FUSED CUP__WIDE
#else
#define CUP__WIDE                                                                                  \
    __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), optimize("O3")))
#define CUP__FUSED                                                                                 \
    __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"),                   \
                   optimize("O3", "fp-contract=fast", "no-trapping-math")))
#endif

#endif
