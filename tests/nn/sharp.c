#include "nn/sharp.h"

#include "test.h"

#define MOST 512

cup_gpt *sharp_gpt(cup_context *c, const cup_gpt_config *config, double factor, double added)
{
    cup_gpt *m = cup_gpt_new(c, CUP_F32, config);
    int64_t count;
    const cup_named *all = cup_parameters_named(m->parameters, &count);
    bool was = cup_grad_recording(c, false);
    for (int64_t i = 0; i < count; i++) {
        cup_tensor *t = all[i].tensor;
        if (cup_tensor_ndim(t) == 2)
            cup_copy_into(c, t, cup_scale(c, t, factor));
        else if (added != 0)
            cup_copy_into(c, t, cup_add(c, t, cup_full(c, CUP_F32, 0, NULL, added)));
    }
    cup_grad_recording(c, was);
    return m;
}

int32_t sharp_token(int64_t text, int64_t at)
{
    return (int32_t)((5 * at + at * at + 3 * text) % WORDS);
}

cup_tensor *sharp_tokens(cup_context *c, int64_t texts, int64_t from, int64_t to)
{
    int32_t ids[MOST];
    int64_t length = to - from;
    EXPECT(texts * length <= MOST);
    for (int64_t i = 0; i < texts * length; i++)
        ids[i] = sharp_token(i / length, from + i % length);
    return cup_tensor_from(c, CUP_I32, 2, (int64_t[]){texts, length}, ids);
}
