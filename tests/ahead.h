/* Tests on a GPU whose kernels nothing else asks for: their calls are made once on a dry GPU, so
 * that all cores compile what they need. Without a GPU, TEST_AHEAD=sm_90a has the kernels of that
 * architecture compiled into the cache's folder, and the test is skipped behind it. */
#ifndef TEST_AHEAD_H
#define TEST_AHEAD_H

#include "cupola/cupola.h"

/* The dry context whose calls are noted; NULL where calls are made in earnest. */
extern cup_context *test_noted;

/* For a loop around a test's calls: true twice, first with test_noted set, then without. Skips the
 * test where there is no GPU. */
bool test_ahead(int *pass);
#define TEST_AHEAD for (int pass = 0; test_ahead(&pass); pass++)

#endif
