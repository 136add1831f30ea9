/* Compiles a loop for several instruction sets; the one the CPU has is picked when the program is
 * loaded. Under ThreadSanitizer there is one only, because the picking happens before the
 * sanitizer has started and would crash. */
#ifndef CUP_BASE_WIDE_H
#define CUP_BASE_WIDE_H

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif

#if !defined(__x86_64__) || defined(__SANITIZE_THREAD__)
#define CUP__WIDE
#elif defined(__clang__)
#define CUP__WIDE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CUP__WIDE                                                                                  \
    __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), optimize("O3")))
#endif

#endif
