"""Names of people and places."""

import random

FIRST_NAMES = (
    "Aaron Ada Ahmed Aisha Alba Alexander Ali Alice Amir Amy Ana Andreas Anna Antonio Aylin Ben "
    "Bernd Birgit Boris Brian "
    "Bruno Camila Carlos Carmen Caroline Charlotte Chen Chloe Christian Clara Claudia Daniel Daria David Deniz Diego "
    "Dimitri Dorothea Elena Elif Elias Elizabeth Emil Emily Emma Erik Esther Eva Fatima Felix Finn "
    "Florian Frank Franziska "
    "Gabriel George Giovanni Grace Greta Hannah Harry Hassan Heidi Helen Henry Hiroshi Hugo Ian "
    "Ibrahim Ines Ingrid Irina "
    "Isabel Ivan Jack Jakob James Jana Jasmin Jonas Jürgen Julia Kai Karim Katharina Kenji Kevin "
    "Klaus Lara Laura Lea Leila "
    "Leon Lena Liam Lin Linda Lisa Lotte Louis Luca Lucas Lukas Magdalena Malik Marco Margaret Maria "
    "Marie Markus Martin "
    "Matteo Max Mehmet Mei Mia Michael Milan Mila Mohammed Monika Moritz Nadia Natalie Nicole Nils "
    "Nina Noah Olga Oliver "
    "Olivia Omar Oskar Otto Pablo Patrick Paul Paula Peter Petra Philipp Pia Priya Rachel Raj Ralf "
    "Rebecca Renate Robert "
    "Rosa Ruth Samira Samuel Sandra Sara Sebastian Selma Sergei Simon Sofia Sophie Stefan Steven "
    "Susanne Svenja Takeshi "
    "Tanja Theo Thomas Tim Tina Tobias Ulrich Ursula Valentina Vera Victor Vincent Walter Wei "
    "William Yasmin Yuki Yusuf Zoe"
).split()

SURNAMES = (
    "Adams Andersson Bauer Becker Bianchi Brown Carter Chen Clark Cohen Davis Demir Díaz Dubois "
    "Evans Fischer Fernández "
    "Ferrari Fuchs García Garcia Gonzalez Gruber Haas Hansen Harris Hartmann Hernández Hoffmann Huber Ivanov Jackson "
    "Jansen Johnson Jones Kaya Keller Khan Kim Klein Kowalski Kaiser Krause Krüger Lang Larsen Lee "
    "Lehmann Lewis Li Lopez "
    "Maier Marino Martin Martínez Mayer Meyer Miller Moore Morgan Müller Murphy Nakamura Neumann "
    "Nguyen Nielsen Novak "
    "Nowak Okafor Olsen Patel Pereira Petersen Pohl Popescu Richter Rossi Sato Sánchez Schmidt "
    "Schneider Scholz Schröder "
    "Schubert Schulz Schwarz Shah Silva Singh Smith Suzuki Tanaka Taylor Thompson Torres Vogel "
    "Wagner Walker Wang Weber "
    "Weiß White Williams Wilson Winkler Wolf Wright Yamamoto Yang Yılmaz Zhang Zimmermann"
).split()

CITIES = [(name, name) for name in (
    "Amsterdam Augsburg Bangkok Barcelona Berlin Boston Bremen Chicago Dresden Dublin Frankfurt "
    "Freiburg Hamburg Helsinki "
    "Istanbul Kassel Leipzig Liverpool London Lyon Madrid Mainz Manchester Mannheim Melbourne Mumbai "
    "Oslo Oxford Paris "
    "Potsdam Salzburg Seattle Stockholm Stuttgart Sydney Toronto Vancouver Bonn Basel Bern Ulm Kiel Rostock"
).split()] + [
    ("Athens", "Athen"), ("Beijing", "Peking"), ("Brussels", "Brüssel"), ("Cologne", "Köln"),
    ("Copenhagen", "Kopenhagen"),
    ("Florence", "Florenz"), ("Geneva", "Genf"), ("Hanover", "Hannover"), ("Lisbon", "Lissabon"),
    ("Milan", "Mailand"),
    ("Moscow", "Moskau"), ("Munich", "München"), ("Naples", "Neapel"), ("New York", "New York"),
    ("Nuremberg", "Nürnberg"),
    ("Prague", "Prag"), ("Rome", "Rom"), ("San Francisco", "San Francisco"), ("Tokyo", "Tokio"),
    ("Venice", "Venedig"),
    ("Vienna", "Wien"), ("Warsaw", "Warschau"), ("Zurich", "Zürich"), ("Los Angeles", "Los Angeles"),
    ("Cairo", "Kairo"),
]  # fmt: skip

COUNTRIES = [
    ("Germany", "Deutschland"), ("France", "Frankreich"), ("Italy", "Italien"), ("Spain", "Spanien"),
    ("Poland", "Polen"),
    ("Austria", "Österreich"), ("Greece", "Griechenland"), ("Sweden", "Schweden"), ("Norway", "Norwegen"),
    ("Peru", "Peru"),
    ("Denmark", "Dänemark"), ("Finland", "Finnland"), ("Portugal", "Portugal"), ("Ireland", "Irland"),
    ("India", "Indien"),
    ("Scotland", "Schottland"), ("Canada", "Kanada"), ("Australia", "Australien"), ("Japan", "Japan"),
    ("China", "China"),
    ("Brazil", "Brasilien"), ("Mexico", "Mexiko"), ("Egypt", "Ägypten"), ("Morocco", "Marokko"), ("Kenya", "Kenia"),
    ("Russia", "Russland"), ("South Korea", "Südkorea"), ("Belgium", "Belgien"), ("Hungary", "Ungarn"),
    ("Chile", "Chile"),
    ("Croatia", "Kroatien"), ("Romania", "Rumänien"), ("Argentina", "Argentinien"), ("New Zealand", "Neuseeland"),
]  # fmt: skip

PEOPLE = [
    ("my sister", "meine Schwester"), ("my brother", "mein Bruder"), ("my mother", "meine Mutter"),
    ("my father", "mein Vater"),
    ("our neighbor", "unser Nachbar"), ("the teacher", "der Lehrer"), ("the doctor", "der Arzt"),
    ("my boss", "mein Chef"),
    ("her husband", "ihr Mann"), ("his wife", "seine Frau"), ("my grandmother", "meine Großmutter"), ("Tom", "Tom"),
    ("my grandfather", "mein Großvater"), ("my aunt", "meine Tante"), ("my uncle", "mein Onkel"),
    ("he", "er"), ("she", "sie"),
    ("our son", "unser Sohn"), ("our daughter", "unsere Tochter"), ("my girlfriend", "meine Freundin"),
    ("Mary", "Maria"),
]  # fmt: skip
"""Subjects in the third person singular."""

_ONSETS = "b br d dr f fl g gr h j k kl kr l l m m n n p r r s sch sh st t t tr v w y z".split()
_VOWELS = "a a a a e e e i i i o o o u u ai ea ei ie y".split()
_CODAS = [*[""] * 12, *"n n r r l s t m ck nd rt x th".split()]


def invented_name(r: random.Random) -> str:
    """Return a name of two or three random syllables, so that a model learns to copy names that it has never seen.

    >>> invented_name(random.Random(1)).istitle()
    True
    """
    syllables = (r.choice(_ONSETS) + r.choice(_VOWELS) + r.choice(_CODAS) for _ in range(r.choice((2, 2, 3))))
    return "".join(syllables).capitalize()
