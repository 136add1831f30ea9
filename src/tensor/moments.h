/* What a product leaves for the batchnorm behind it: of each column of its result, for lines of so
 * many rows, the mean and the squared distances from it. Whoever calls both asks for them; who can
 * make them beside the result does, and batchnorm, which knows them by the result's memory, takes
 * them in place of a reading of it. */
#ifndef CUP_TENSOR_MOMENTS_H
#define CUP_TENSOR_MOMENTS_H

#include "tensor/context.h"

/* From the begin on what is made is kept, until the end. Once they are made nobody else is asked
 * for any. */
void cup__moments_begin(cup_context *c);
void cup__moments_made(cup_context *c);
void cup__moments_end(cup_context *c);

/* Memory for those of a result of rows and columns without gaps, at `of`: two numbers a column and
 * line, f32. NULL where nobody asked, or lines are no whole ones, or with an error in the
 * context. */
float *cup__moments_make(cup_context *c, const void *of, int64_t rows, int64_t columns,
                         int64_t line);

/* Those of x, whose last dimension has so many columns; NULL where there are none. */
const cup__moments *cup__moments_of(const cup_tensor *x, int64_t columns);

#endif
