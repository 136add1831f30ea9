/* cupola.h: everything of Cupola. A whole program:
 *
 *     #include <cupola/cupola.h>
 *     #include <stdio.h>
 *
 *     int main(void)
 *     {
 *         cup_context *c = cup_context_new(NULL);
 *         float x[] = {1, 2, 3, 4, 5, 6}, y[] = {10, 20, 30};
 *         cup_tensor *a = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){2, 3}, x);
 *         cup_tensor *b = cup_tensor_from(c, CUP_F32, 1, (int64_t[]){3}, y);
 *         cup_tensor_print(cup_add(c, a, b), stdout);
 *         if (cup_error(c))
 *             fprintf(stderr, "%s\n", cup_error_text(c));
 *         cup_context_free(c);
 *     }
 *
 * Compile with: cc program.c $(pkg-config --cflags --libs cupola)
 *
 * base.h has the context, errors and ownership; tensor.h the arrays; ops.h every op; expr.h
 * formulas of your own; grad.h gradients; losses.h losses; functions.h what is made of several
 * ops; parameters.h and layers.h models of any kind; prof.h checks, timings and memory; loader.h
 * samples as batches; plan.h what a run of training needs; stream.h the order of work on a GPU;
 * comm.h many processes; facts.h what this machine offers; cache.h the compiled kernels on disk;
 * text.h words for people; wrap.h memory of others, and so has dlpack.h, which is not part of this
 * one. */
#ifndef CUPOLA_CUPOLA_H
#define CUPOLA_CUPOLA_H

#include "cupola/base.h"
#include "cupola/cache.h"
#include "cupola/classifier.h"
#include "cupola/comm.h"
#include "cupola/data.h"
#include "cupola/expr.h"
#include "cupola/facts.h"
#include "cupola/functions.h"
#include "cupola/grad.h"
#include "cupola/graph.h"
#include "cupola/images.h"
#include "cupola/io.h"
#include "cupola/kernel.h"
#include "cupola/kv_cache.h"
#include "cupola/layers.h"
#include "cupola/loader.h"
#include "cupola/loop.h"
#include "cupola/losses.h"
#include "cupola/network.h"
#include "cupola/nn.h"
#include "cupola/ops.h"
#include "cupola/optim.h"
#include "cupola/parameters.h"
#include "cupola/plan.h"
#include "cupola/prof.h"
#include "cupola/stream.h"
#include "cupola/tensor.h"
#include "cupola/text.h"
#include "cupola/train.h"
#include "cupola/wrap.h"

#endif
