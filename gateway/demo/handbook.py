"""The long text that the demo and the benchmarks send: a harbour's handbook, about 2,900 tokens, written for this use.

Owns: the prose and the questions about it. Knows no server and no tokenizer.
Rule: a copy's number stands before all other text. Requests over one copy share its whole prefix; two copies with
different numbers share nothing worth keeping, so that a fresh number is a cold start.
"""

from __future__ import annotations

from typing import Final

HANDBOOK: Final = """\
# Handbook of the Harbour of Saltmarsh Ness

## 1. Who we are
The harbour of Saltmarsh Ness lies on the north bank of the river Wend, three miles inside the bar. It has one outer
wall, two basins and a slip. The outer wall was built of local granite and carries the lighthouse at its seaward end.
The east basin is for fishing boats, the west basin for visitors and for the ferry, and the slip belongs to the
lifeboat. The harbour is run by five people: the harbour master, two watch officers, the lamp keeper and the clerk.
The harbour master answers to the parish council, which meets on the first Tuesday of each month in the net loft.
Anyone may attend, and anyone may ask for a page of this handbook to be changed.

## 2. The lighthouse
The tower is nineteen metres tall and painted white with a single red band below the gallery. Its light shows two white
flashes every twelve seconds and can be seen for fourteen miles on a clear night. The lamp is lit half an hour before
sunset and put out half an hour after sunrise. The lamp keeper climbs the tower twice a day: once in the morning to
clean the lens with vinegar and soft linen, and once in the evening to check the motor, the spare bulb and the battery.
If the main lamp fails, the spare takes over by itself within ten seconds and a bell rings in the watch room. The keeper
then has one hour to repair the main lamp. If that cannot be done, the watch officer tells the coast station by radio so
that a warning to ships can be sent. The lens is older than the tower. It came from a lightship that was broken up, and
it must never be moved without the written consent of the council.

## 3. The fog signal
The fog horn stands on the roof of the oil store. It sounds one blast of four seconds every minute. It is started when
the white beacon on Gull Rock, two miles away, can no longer be seen from the watch room, and stopped when the beacon
has been seen without a break for twenty minutes. The horn runs on compressed air from two tanks. The tanks are filled
by the small engine in the shed and must never fall below six bar. Between eleven at night and six in the morning the
horn may be turned to its low setting when no vessel is expected, because the cottages on the wall are close to it. The
watch officer writes each start and stop into the log with the time and the direction of the wind.

## 4. Arriving
A vessel that wishes to enter calls the watch room on channel twelve when it passes the outer buoy. It gives its name,
its length, its draught and the number of people on board. The watch officer answers with a berth and with the depth of
water over the sill. No vessel enters against a red light at the end of the wall. A green light means that the entrance
is clear; a green light over a white one means that the entrance is clear for vessels shorter than fifteen metres only.
The greatest speed inside the wall is four knots. A vessel under sail alone may enter by day if the wind is less than
force five, and must have its engine ready. Anchoring is forbidden in the entrance and over the cable that runs from the
slip to Gull Rock. A vessel that touches the ground reports it at once, even if it comes free without help.

## 5. Berths and dues
Visitors lie in the west basin, on the pontoons marked with letters. Pontoon A is for vessels up to eight metres,
pontoon B for those up to twelve, and pontoon C for those up to eighteen. Longer vessels lie alongside the wall and must
tend their lines through the tide, which rises and falls by more than five metres at springs. Dues are paid at the
clerk's window before noon on the day after arrival. The rate is two crowns for each metre and each night, with water
and the use of the showers included. Electricity is measured and costs one crown for four units. The third night is free
for vessels that have been sailed by one person alone, and the first night is free for any vessel that came in because
of damage or sickness on board. Fishing boats of the parish pay by the year. Their owners receive a brass plate with a
number, which is fixed to the wheelhouse where it can be read from the wall.

## 6. Tides and the sill
The west basin is closed by a sill that holds two metres of water when the tide is out. The gate on the sill opens about
two hours before high water and closes about two hours after it. The exact times hang on the board beside the watch room
and are sent by radio every six hours. While the gate is moving, an amber light turns on both sides of it, and nothing
may pass, not even a rowing boat. The east basin has no sill. It dries almost completely at low water of spring tides,
and boats that lie there must be able to take the ground. After heavy rain the river runs hard for a day and a half and
brings branches down with it; the watch officer then sets a boom of old mooring buoys across the upper end of the east
basin and takes it away when the water is clear.

## 7. Fuel, water and waste
Diesel is sold at the fuel berth from eight until five, and on Sundays until noon. Petrol is carried only in cans that
the clerk has inspected and marked with green paint. Nobody smokes at the fuel berth, and engines are stopped while
fuel is flowing. Two people are present at each fuelling: one at the tank and one at the pump. A spill, however small,
is reported to the watch room first and cleaned up second, because the tide carries it into the oyster beds within a
quarter of an hour. Fresh water is free from the blue taps. The red taps give river water for washing decks and must not
be drunk. Oil, batteries and old flares are handed in at the shed on Wednesdays. Fish waste goes into the lidded bins
behind the auction hall and never over the side, since it draws gulls to the lamp and foxes to the cottages.

## 8. Storm routine
When the barometer falls by more than eight points in three hours, or when the coast station gives warning of a gale,
the watch officer hoists a black cone on the mast and begins the storm routine. First, all berths are told by radio and
by a walk along the pontoons. Second, the storm gate is lowered behind the sill, which takes twenty-five minutes and
needs two people. Third, the loose gear on the wall is brought into the net loft, the ladders are lashed and the lifting
crane is lowered onto its rest. Fourth, the wall is closed beyond the second lamp post, and a chain is put across it.
Nobody goes past the chain while waves come over, not even to save a boat. The lamp keeper stays in the tower for the
length of the storm and speaks with the watch room every half hour. If three calls in a row are not answered, the
watch officer asks the lifeboat crew to stand by, but sends nobody along the wall. The routine ends when the wind has
been below force seven for two hours, and every step is then undone in the reverse order.

## 9. The lifeboat
The lifeboat is kept on the slip with its bow to the sea and can be afloat nine minutes after the call. The crew is
called by pager and by two green rockets from the wall. When the rockets are seen, all traffic in the entrance stops and
the fuel berth is cleared, because the boat passes within four metres of it. The coxswain alone decides whether the boat
goes out. The harbour master gives every help that is asked for, and makes sure that the slip is clear of weed, rope and
visitors' dinghies at all times. On the second Saturday of each month the crew exercises in the bay, and a notice is put
on the board the evening before so that the rockets alarm nobody. Gifts for the lifeboat may be put in the iron fish
that hangs beside the clerk's window. It is opened once a year, in front of witnesses.

## 10. Working on the wall
Nets may be spread on the wall from the first lamp post to the second, on the landward side, leaving a path as wide as
two people. The crane lifts up to one and a half tonnes and is worked only by those whose names are on the list in the
watch room. Before a lift the hook is tried with an empty sling, and one person, in a yellow jacket, gives all the
signals. Nobody stands under a load or between a load and the water. Welding and grinding need a permit for the day, a
bucket of sand and a second person who watches for sparks. Children are welcome on the wall when an adult is within
reach. Dogs are kept on a lead, except for the clerk's dog, which has lived in the harbour longer than most rules.

## 11. The watch and its log
The watch room is never empty. The day watch runs from six until six, and so does the night watch, with a quarter of an
hour in which both officers are present. The one who leaves tells the one who comes of four things: which vessels are
expected, which lights or machines are out of order, what the weather will do, and who is sick. The log is written in
ink. A mistake is crossed out with one line so that it can still be read, and initialled. Each vessel that enters or
leaves is noted with its name, the time and the depth over the sill. Each call from the coast station is noted word for
word. At the end of the month the harbour master reads the log and signs it, and the clerk puts it into the iron
cupboard, where it is kept for thirty years.

## 12. Sickness, fire and people in the water
A person in the water is more urgent than anything else in this handbook. Whoever sees it shouts, throws the nearest
ring and keeps pointing at the person until help has come. Rings hang on every second lamp post and at the head of each
pontoon. The ladders are painted orange and reach down to the lowest tide. For fire, there are red boxes with hoses at
the fuel berth, at the auction hall and at the foot of the tower. The first person at a fire calls the watch room; the
second one unrolls the hose. A burning vessel is not towed out by anyone but the lifeboat. For sickness, the doctor's
number hangs beside the telephone, and a stretcher that fits through the hatches of small boats is kept in the shed.
The meeting point after every alarm is the flagpole in front of the net loft, where the clerk counts heads against the
list of the day.

## 13. Winter
From the first of November until the end of March the pontoons B and C are taken out of the water and the visitors'
showers are drained. Vessels that stay for the winter are lifted out by the crane in the last week of October, in the
order in which their owners have signed the sheet in the net loft. They stand on wooden cradles with their masts down.
Heaters may not be left running in them unless someone sleeps on board. When ice forms in the west basin, the watch
officer keeps the gate moving once in each tide so that it does not freeze to the sill. Snow is swept from the wall
toward the river and never into the basin, because it carries salt and sand into the pump.

## 14. The ferry
The ferry to the south bank leaves from the head of the west basin at seven, at noon and at five, and on market days
also at three. It waits for nobody but the doctor. Bicycles travel free, a cart with one animal costs three crowns, and
a motor car must be booked at the clerk's window on the day before. When the gate on the sill is closed, the ferry
leaves from the steps beside the tower instead, and a blue flag on the net loft says so. In fog it does not sail at all.

## 15. Lost things, and a last word
What is found on the wall or in the water is brought to the clerk, who ties a label to it with the date and the place.
After one year it belongs to the finder, except for anchors, which belong to the harbour, and messages in bottles, which
are read aloud at the next meeting of the council. This handbook cannot foresee everything. Where it is silent, do what
keeps people safe first, what keeps boats safe second, and what keeps the log short last. Then tell the watch room what
you did, so that the next edition can say it better than this one.
"""

QUESTIONS: Final = (
    "How does a ship at sea recognise the light of Saltmarsh Ness?",
    "What must happen first when diesel is spilled at the fuel berth?",
)

CONVERSATION: Final = (
    "I arrive tonight with a boat of eleven metres. Where do I lie?",
    "What do I pay for two nights?",
    "When can I leave the west basin again?",
    "And if a storm is announced while I am here?",
    "Thank you. Whom do I tell if I want a page of the handbook changed?",
)


def copy_of_handbook(number: str) -> str:
    """Make a system message of the handbook. Copies with different `number`s differ from their first line on."""
    return f"Copy {number}. Answer in one short sentence, from this handbook alone.\n\n{HANDBOOK}"
