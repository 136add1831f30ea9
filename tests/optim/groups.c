/* Groups of parameters with a weight decay and a rate of their own. */
#include <string.h>

#include "cupola/cupola.h"
#include "optim/groups.h"
#include "test.h"

static bool in_group(const char *pattern, const char *name)
{
    char text[CUP_PARAMETER_GROUPS];
    cup__groups groups;
    snprintf(text, sizeof text, "  %s=0.5 ", pattern);
    EXPECT_INT(cup__groups_read(NULL, text, &groups), CUP_OK);
    return cup__groups_find(&groups, name) != NULL;
}

TEST(groups_match_whole_names)
{
    static const struct {
        const char *pattern, *name;
        bool matches;
    } cases[] = {{"a", "a", true},         {"a", "ab", false},      {"b", "ab", false},
                 {"*", "", true},          {"*", "a.b", true},      {"?", "", false},
                 {"a*b*c", "abc", true},   {"a*b*c", "axbxbc", true}, {"a*b*c", "axbxb", false},
                 {"h.?.*", "h.1.x", true}, {"h.?.*", "h.12.x", false}, {"*.w", "h.w.w", true},
                 {"a=b", "a=b", true},     {"**a", "ba", true},     {"*aab", "aaaab", true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (in_group(cases[i].pattern, cases[i].name) != cases[i].matches)
            test_fail(__FILE__, __LINE__, "%s and %s", cases[i].pattern, cases[i].name);
}

TEST(groups_are_refused_where_they_say_nothing)
{
    static const char *const bad[] = {"a",      "=0",    "a=",     "a=-1",  "a=nan",  "a=2e6",
                                      "a=0,",   "a=0,x", "a=0,1,", "a=0,1,1", "a= 0", "a=0,-1",
                                      "a=inf", "a=0;1"};
    char text[CUP_PARAMETER_GROUPS];
    cup__groups groups;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (cup__groups_read(NULL, bad[i], &groups) != CUP_ARGUMENT)
            test_fail(__FILE__, __LINE__, "%s is read", bad[i]);
    memset(text, 'a', sizeof text);
    EXPECT_INT(cup__groups_read(NULL, text, &groups), CUP_ARGUMENT);
    for (size_t i = 0; i + 4 < sizeof text; i += 4)
        memcpy(text + i, "a=0 ", 5);
    EXPECT_INT(cup__groups_read(NULL, text, &groups), CUP_ARGUMENT);
}

/* A step of gradient descent without gradients shrinks each by its rate times its decay. */
TEST(groups_have_their_decay_and_rate)
{
    static const char *const names[] = {"a.weight", "a.bias", "b.weight", "b.bias"};
    static const double decay[] = {0.5, 0, 0.25, 0.25}, rate[] = {1, 1, 2, 4};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_parameter list[4];
    cup_tensor *loss = NULL;
    for (int i = 0; i < 4; i++) {
        cup_tensor *t = cup_keep(cup_ones(c, CUP_F32, 0, NULL));
        list[i] = (cup_parameter){names[i], t, i % 2 == 0, i == 3 ? 2 : 0, false};
        cup_require_grad(t);
        cup_tensor *zero = cup_scale(c, t, 0);
        loss = loss ? cup_add(c, loss, zero) : zero;
    }
    cup_optimizer_options options = {.size = sizeof options,
                                     .method = CUP_METHOD_SGD,
                                     .weight_decay = 0.5,
                                     .groups = "b.*=0.125,8 b.*=0.25,2"};
    cup_optimizer *o = cup_optimizer_new(c, list, 4, &options);
    EXPECT_INT(cup_optimizer_set(o, 0.5, 1), CUP_OK);
    EXPECT_INT(cup_backward(c, loss), CUP_OK);
    EXPECT_INT(cup_optimizer_step(o), CUP_OK);
    for (int i = 0; i < 4; i++)
        EXPECT_NEAR(cup_tensor_item(list[i].tensor), 1 - 0.5 * rate[i] * decay[i], 1e-6);
    cup_optimizer_free(o);
    strcpy(options.groups, "b.*=0 c.*=1");
    EXPECT(!cup_optimizer_new(c, list, 4, &options));
    EXPECT_CONTAINS(cup_error_text(c), "no parameter is called c.*");
    for (int i = 0; i < 4; i++)
        cup_tensor_free(list[i].tensor);
    cup_context_free(c);
}
