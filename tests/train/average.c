/* Moving averages in the checkpoints of runs. */
#include <string.h>

#include "base/memory.h"
#include "test.h"
#include "train/session.h"

/* All weights of a folder's checkpoint, or their averages, one behind the other. */
static int64_t weights_of(session *s, const char *folder, bool average, float **out)
{
    cup_gpt *m = average ? cup_gpt_load_average(s->c, folder) : cup_gpt_load(s->c, folder);
    EXPECT_INT(cup_error(s->c), CUP_OK);
    int64_t count, all = cup_parameters_count(m->parameters, false), at = 0;
    const cup_named *named = cup_parameters_named(m->parameters, &count);
    *out = cup__malloc((size_t)all * sizeof **out);
    for (int64_t i = 0; i < count; i++) {
        int64_t n = cup_tensor_count(named[i].tensor);
        EXPECT(at + n <= all);
        EXPECT_INT(cup_tensor_read(named[i].tensor, *out + at, (size_t)n * sizeof **out), CUP_OK);
        at += n;
    }
    cup_gpt_free(m);
    return at;
}

TEST(averages_go_on_bit_for_bit)
{
    const char *folder = test_folder();
    cup_training averaged = tiny;
    averaged.optimizer.average = 0.75;
    float *whole, *parts, *last;
    session s;
    begin(&s, &averaged, sample_text(), folder);
    EXPECT_INT(go(&s), CUP_OK);
    int64_t count = weights_of(&s, folder, true, &whole);
    EXPECT_INT(weights_of(&s, folder, false, &last), count);
    end(&s);
    EXPECT(memcmp(whole, last, (size_t)count * sizeof *whole) != 0);
    begin(&s, &averaged, sample_text(), folder);
    cup_trainer_overwrite(s.trainer);
    s.stop_at = 5;
    EXPECT_INT(go(&s), CUP_INTERRUPTED);
    end(&s);
    begin(&s, &averaged, sample_text(), folder);
    EXPECT_INT(cup_trainer_resume(s.trainer), CUP_OK);
    EXPECT_INT(go(&s), CUP_OK);
    EXPECT_INT(weights_of(&s, folder, true, &parts), count);
    end(&s);
    EXPECT(!memcmp(whole, parts, (size_t)count * sizeof *whole));
    begin(&s, &tiny, sample_text(), folder);
    EXPECT_INT(cup_trainer_resume(s.trainer), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(s.c), "average");
    end(&s);
    cup__free(whole);
    cup__free(parts);
    cup__free(last);
}

TEST(averages_are_refused_where_none_were_kept)
{
    const char *folder = test_folder();
    session s;
    begin(&s, &tiny, sample_text(), folder);
    EXPECT_INT(go(&s), CUP_OK);
    EXPECT(!cup_gpt_load_average(s.c, folder));
    EXPECT_INT(cup_error(s.c), CUP_STATE);
    EXPECT_CONTAINS(cup_error_text(s.c), "--ema");
    end(&s);
}
