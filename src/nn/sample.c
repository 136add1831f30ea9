/* Drawing the next token on the host. */
#include <math.h>

#include "base/options.h"
#include "cupola/nn.h"
#include "ops/random/draw_token.h"

int64_t cup_sample(const float *logits, int64_t count, uint64_t draw, const cup_sampling *sampling)
{
    cup_sampling s;
    if (!logits || count > INT32_MAX ||
        cup__options_take(NULL, "sample", &s, sizeof s, sampling) != CUP_OK ||
        isnan(s.temperature) || isnan(s.top_p) || s.top_k < 0)
        return -1;
    return cup__draw_token(logits, count,
                           &(cup__draw){.temperature = s.temperature,
                                        .top_k = s.top_k,
                                        .top_p = s.top_p,
                                        .seed = s.seed,
                                        .number = draw});
}
