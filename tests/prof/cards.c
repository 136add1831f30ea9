/* What is known of kinds of cards. */
#include <string.h>

#include "cupola/facts.h"
#include "test.h"

TEST(cards_are_found_by_either_name)
{
    cup_card card, other;
    int count = 0;
    for (; cup_card_at(count, &card); count++) {
        EXPECT(cup_card_find(card.name, &other) && !strcmp(other.driver, card.driver));
        EXPECT(cup_card_find(card.driver, &other) && !strcmp(other.name, card.name));
        EXPECT(!strncmp(card.arch, "sm_", 3) && card.multiprocessors > 0);
        /* A faster dtype is not slower, and a second of reading is more than the memory holds. */
        EXPECT(card.f32 > 0 && card.half > card.f32 && (!card.tf32 || card.tf32 <= card.half));
        EXPECT((!card.float8 || card.float8 > card.half) && card.bytes_per_second > 1e10);
        EXPECT(card.memory_bytes >= 16e9 && card.bytes_per_second > card.memory_bytes);
    }
    EXPECT(count > 10 && !cup_card_at(-1, &card) && !cup_card_at(0, NULL));
    EXPECT(cup_card_find("H200", &card));
    EXPECT(card.half == 989.4e12 && card.multiprocessors == 132);
    EXPECT(!cup_card_find("h2", &card) && !cup_card_find(NULL, &card));
}
